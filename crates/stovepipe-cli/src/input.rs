//! Reading files that are given as arguments.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};

/// No file is read that is larger than the largest plan.
const MAX_BYTES: u64 = 2 << 30;

/// The text of a file.
pub(crate) fn text(path: &Path) -> Result<String> {
    let name = path.display();
    let unreadable = || format!("{name} can't be read");
    let file = File::open(path).with_context(unreadable)?;
    let known = file.metadata().with_context(unreadable)?.len();
    let mut bytes = Vec::new();
    if known <= MAX_BYTES {
        // Pipes and devices don't know their length.
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).with_context(unreadable)?;
    }
    ensure!(
        known.max(bytes.len() as u64) <= MAX_BYTES,
        "{name} is larger than 2 GiB, which no plan or profile is: give another file"
    );
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow!("{name} can't be used: it isn't text from byte {at} on; give CSV or JSON")
    })
}
