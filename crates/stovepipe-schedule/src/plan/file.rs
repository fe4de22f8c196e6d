//! Plans as files: CSV with a row for each rank and an action in each cell, and JSON with the same
//! rows.

use std::borrow::Cow;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::plan::Plan;
use crate::plan::parse::parse_rows;
use crate::words::action::Action;
use crate::words::compute::Compute;
use crate::words::error::PlanError;

/// The contents of a JSON file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct File<A> {
    /// The actions of each rank in order.
    pub(crate) ranks: Vec<Vec<A>>,
}

/// A text that is copied only if the file escapes a character in it.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Plan {
    /// One row for each rank, one cell for each slot; idle slots are empty (and left out of a plan
    /// with more than ten million slots).
    ///
    /// ```
    /// use stovepipe_schedule::{GPipe, Plan, Schedule, Shape};
    ///
    /// let plan = GPipe::default().plan(Shape::new(2, 2))?;
    /// assert_eq!(plan.to_csv(), "0F0,0F1,,,0B1,0B0\n,1F0,1F1,1B1,1B0,\n");
    /// # Ok::<(), stovepipe_schedule::PlanError>(())
    /// ```
    #[must_use]
    pub fn to_csv(&self) -> String {
        let (slots, length) = self.columns();
        let rows = slots.iter().zip(self.rows()).map(|(slots, row)| {
            let mut cells = vec![String::new(); length.max(row.len())];
            for (slot, action) in slots.iter().zip(row) {
                cells[*slot] = action.to_string();
            }
            cells
        });
        write_csv(rows)
    }
}

/// Rows of cells as CSV.
pub(crate) fn write_csv(rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    for row in rows {
        // Writing to memory doesn't fail, and neither does UTF-8 that was written as such.
        let _ = writer.write_record(&row);
    }
    writer.into_inner().ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

/// Reads the rows of a plan file: CSV, or JSON if it begins with a brace. A byte order mark is left
/// out.
pub(crate) fn read_rows(text: &str) -> Result<Vec<Vec<Action>>, PlanError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{') { json_rows(text) } else { csv_rows(text) }
}

fn csv_rows(text: &str) -> Result<Vec<Vec<Action>>, PlanError> {
    // The reader leaves empty lines out, so that all below would be taken for other ranks'.
    if let Some(line) = text.trim_end().lines().position(|line| line.trim().is_empty()) {
        let problem = format!("line {} is empty: each line is a rank, which has actions", line + 1);
        return Err(PlanError::File { problem });
    }
    let mut options = csv::ReaderBuilder::new();
    let mut reader = options.has_headers(false).flexible(true).from_reader(text.as_bytes());
    let mut rows = Vec::new();
    let mut record = csv::StringRecord::new();
    while reader
        .read_record(&mut record)
        .map_err(|error| PlanError::File { problem: error.to_string() })?
    {
        rows.extend(parse_rows([record.iter()]).map_err(|error| at_rank(error, rows.len()))?);
    }
    Ok(rows)
}

fn json_rows(text: &str) -> Result<Vec<Vec<Action>>, PlanError> {
    let file: File<Text<'_>> = serde_json::from_str(text)
        .map_err(|error| PlanError::File { problem: error.to_string() })?;
    parse_rows(file.ranks.iter().map(|row| row.iter().map(|cell| &*cell.0)))
}

/// Rows are read one by one: says which it was.
fn at_rank(error: PlanError, rank: usize) -> PlanError {
    match error {
        PlanError::Parse { position, problem, .. } => PlanError::Parse { rank, position, problem },
        other => other,
    }
}

/// A plan is serialized as `{"ranks": [["0F0", "0B0"], …]}`, and checked when it is read.
impl Serialize for Plan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Cells are short; borrowing them would need a second form of the struct.
        File { ranks: self.rows().to_vec() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Plan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let file = File::<Compute>::deserialize(deserializer)?;
        Self::new(file.ranks).map_err(D::Error::custom)
    }
}
