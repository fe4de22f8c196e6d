//! Plans as files: CSV with a row for each rank and an action in each cell, and JSON with the same rows.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::grid::columns;
use crate::plan::parse_rows;
use crate::program::recomputed;
use crate::{Action, Edge, Edges, Plan, PlanError, Program};

/// What a JSON file holds.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File<A> {
    /// The actions of each rank in order.
    ranks: Vec<Vec<A>>,
}

/// A text that is copied only if the file escapes a character in it.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl Plan {
    /// One row for each rank, one cell for each slot; idle slots are empty (and left out of a plan with
    /// more than ten million slots).
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
        let (slots, length) = columns(self);
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

impl Program {
    /// One row for each rank, one cell for each action, communication included.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let rows = (0..self.plan().ranks()).map(|rank| self.row(rank));
        write_csv(rows.map(|row| row.iter().map(ToString::to_string).collect()))
    }

    /// Reads a plan file: CSV, or JSON if it begins with a brace. A byte order mark is skipped.
    ///
    /// The file may hold compute actions only, which are then lowered along the chain of stages, or all
    /// communication too, which is then checked as strictly. Messages between stages that aren't
    /// neighbours make skips. A stage with an `R` is taken as one layer that is recomputed.
    ///
    /// # Errors
    ///
    /// [`PlanError::File`] if it is neither, and as [`Program::parse`] and [`Program::lower`].
    pub fn read(text: &str, in_flight: Option<usize>) -> Result<Self, PlanError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let rows =
            if text.trim_start().starts_with('{') { json_rows(text) } else { csv_rows(text) };
        let rows = rows?;
        let messages = || {
            rows.iter().flatten().filter_map(|action| match action {
                Action::Compute(_) => None,
                Action::Send(message) | Action::Recv(message) => Some(message.edge()),
            })
        };
        if messages().next().is_none() {
            let compute = rows.iter().map(|row| row.iter().filter_map(Action::compute).collect());
            let plan = Plan::new(compute)?;
            let program = Self::lower(&plan, &Edges::chain(plan.stages()), &recomputed(&plan))?;
            return match in_flight {
                Some(limit) => program.check_in_flight(limit).map(|()| program),
                None => Ok(program),
            };
        }
        let is_skip = |edge: &Edge| edge.from.index() + 1 != edge.to.index();
        let skips: BTreeSet<Edge> = messages().filter(is_skip).collect();
        let edges = |stages| {
            skips.iter().try_fold(Edges::chain(stages), |edges, e| edges.with_skip(e.from, e.to))
        };
        Self::from_rows(rows, edges, in_flight)
    }
}

fn write_csv(rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    for row in rows {
        // Writing to memory doesn't fail, and neither does UTF-8 that was written as such.
        let _ = writer.write_record(&row);
    }
    writer.into_inner().ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

fn csv_rows(text: &str) -> Result<Vec<Vec<Action>>, PlanError> {
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
        let file = File::<crate::Compute>::deserialize(deserializer)?;
        Self::new(file.ranks).map_err(D::Error::custom)
    }
}

/// A program is serialized like a plan, communication included. Reading is [`Program::read`]'s business,
/// which finds the edges.
impl Serialize for Program {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = (0..self.plan().ranks()).map(|rank| self.row(rank).to_vec());
        File { ranks: rows.collect() }.serialize(serializer)
    }
}
