//! Tables of figures, as benchmarks print them.

use comfy_table::{Row, Table};
use stovepipe::tune::Time;

/// A table with a header.
pub fn table<R: Into<Row>>(header: impl Into<Row>, rows: impl IntoIterator<Item = R>) -> Table {
    let mut table = Table::new();
    table.set_header(header);
    table.add_rows(rows);
    table
}

/// Seconds to the millisecond.
#[must_use]
pub fn seconds(seconds: f64) -> String {
    format!("{seconds:.3} s")
}

/// A median in seconds, and half of the spread around it.
#[must_use]
pub fn spread(time: Time) -> String {
    format!("{} ± {:.3}", seconds(time.median), time.spread / 2.0)
}

/// How far a ratio is from 1, in percent.
#[must_use]
pub fn deviation(ratio: f64) -> String {
    format!("{:+.1}%", 100.0 * (ratio - 1.0))
}

/// Bytes in mebibytes.
#[must_use]
pub fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
