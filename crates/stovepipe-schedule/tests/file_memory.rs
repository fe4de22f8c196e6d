//! Reading a plan file needs memory in proportion to the file, whatever numbers stand in it. Alone
//! in its file, because the allocator counts for the whole process.

use peak_alloc::PeakAlloc;
use stovepipe_schedule::{Edges, GPipe, Program, Retention, Schedule, Shape};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Bytes that reading may need for each byte of the file, and at least.
const FACTOR: usize = 120;
const BASE: usize = 1 << 20;

#[test]
fn memory_is_bounded_by_the_size_of_the_file() {
    let large = GPipe::default().plan(Shape::new(16, 256)).expect("a plan");
    let retention = Retention::keep_all(&large);
    let messages = Program::lower(&large, &Edges::chain(16), &retention).expect("lowers");
    let files = [
        large.to_csv(),
        serde_json::to_string(&large).expect("serializes"),
        "4294967295F4294967295".to_owned(),
        "0F0,0F4000000000,4000000000F0".to_owned(),
        ",".repeat(100_000),
        "0F0\n".repeat(10_000),
        format!("{{\"ranks\": [{}]}}", "[".repeat(100_000)),
        // Edges by the thousand: each stage is sent to, none receives.
        format!(
            "0F0,{}\n{}",
            (2..9_000).map(|s| format!("0SEND_F0>{s},")).collect::<String>(),
            (1..9_000).map(|s| format!("{s}F0\n")).collect::<String>(),
        ),
        messages.to_csv(),
        serde_json::to_string(&messages).expect("serializes"),
        "\u{7f}".repeat(100_000),
    ];
    for text in files {
        ALLOCATOR.reset_peak_usage();
        let before = ALLOCATOR.current_usage();
        let _ = Program::read(&text, Some(1));
        let peak = ALLOCATOR.peak_usage() - before;
        let start: String = text.chars().take(30).collect();
        assert!(peak <= BASE + FACTOR * text.len(), "{peak} bytes for {} of {start}", text.len());
    }
}
