//! Plans as text: aligned by slot when valid, by cell with the bad one in brackets when not.

use std::fmt::Write;
use std::ops::Range;

use crate::words::action::Action;
use crate::words::compute::Compute;
use crate::words::error::{Fault, PlanError};
use crate::words::ids::Rank;

/// How many cells are shown before and after a bad one, and at most in all ranks.
const CELLS_AROUND: usize = 8;
const RANKS_AROUND: usize = 8;

/// The rows of a valid plan, each action in its column, dots where a rank idles.
pub(crate) fn slot_grid(rows: &[Vec<Compute>], columns: &[Vec<usize>], length: usize) -> String {
    let actions = rows.iter().flatten();
    let width = actions.map(|action| action.to_string().len()).max().unwrap_or(1);
    let label = label_width(rows.len());
    let idle = |line: &mut String, slots: Range<usize>| {
        for _ in slots {
            let _ = write!(line, " {:^width$}", ".");
        }
    };
    let mut out = String::new();
    for (rank, (row, columns)) in rows.iter().zip(columns).enumerate() {
        let mut line = format!("rank {rank:label$} |");
        let mut next = 0;
        for (action, &column) in row.iter().zip(columns) {
            idle(&mut line, next..column);
            let _ = write!(line, " {:^width$}", action.to_string());
            next = column + 1;
        }
        idle(&mut line, next..length);
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// The error for one cell, with the rows as they stand and that cell in brackets. An action that
/// should be there and isn't is shown after the cell.
pub(crate) fn bad_cell<A>(rows: &[Vec<A>], rank: usize, position: usize, fault: Fault) -> PlanError
where
    A: Copy + Into<Action>,
{
    let missing = match fault {
        Fault::Missing(action) => Some(action),
        _ => None,
    };
    let grid = cell_grid(rows, &BadCell { rank, position, missing });
    PlanError::Cell { fault, rank: Rank::new(rank), position, grid }
}

struct BadCell {
    rank: usize,
    position: usize,
    missing: Option<Action>,
}

/// Rows as they stand, whatever they hold, cut to the neighbourhood of the bad cell.
fn cell_grid<A: Copy + Into<Action>>(rows: &[Vec<A>], bad: &BadCell) -> String {
    let first_rank = bad.rank.saturating_sub(RANKS_AROUND);
    let last_rank = (bad.rank + RANKS_AROUND).min(rows.len().saturating_sub(1));
    let shown = rows.iter().enumerate().take(last_rank + 1).skip(first_rank);
    let lines: Vec<Vec<String>> =
        shown.map(|(rank, row)| cells(row, bad, rank == bad.rank)).collect();
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let texts = lines.iter().filter_map(|line| line.get(column));
        texts.map(|text| text.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let label = label_width(rows.len());
    let mut out = String::new();
    for (offset, cells) in lines.iter().enumerate() {
        let mut line = format!("rank {:label$} |", first_rank + offset);
        for (text, width) in cells.iter().zip(&widths).filter(|(_, w)| **w > 0) {
            let _ = write!(line, " {text:^width$}");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// The cells of one row around the bad one's column; dots where the row is cut.
fn cells<A: Copy + Into<Action>>(row: &[A], bad: &BadCell, is_bad_row: bool) -> Vec<String> {
    let first = bad.position.saturating_sub(CELLS_AROUND);
    let end = bad.position + CELLS_AROUND + 1;
    let is_cut = first > 0 && !row.is_empty();
    let mut cells = vec![if is_cut { "…".to_owned() } else { String::new() }];
    for (position, action) in row.iter().enumerate().take(end).skip(first) {
        let action: Action = (*action).into();
        cells.push(match bad.missing {
            Some(missing) if is_bad_row && position == bad.position => {
                format!("{action} [{missing}?]")
            }
            None if is_bad_row && position == bad.position => format!("[{action}]"),
            _ => action.to_string(),
        });
    }
    if let Some(missing) = bad.missing.filter(|_| is_bad_row && bad.position >= row.len()) {
        cells.push(format!("[{missing}?]"));
    }
    if row.len() > end {
        cells.push("…".to_owned());
    }
    cells
}

fn label_width(ranks: usize) -> usize {
    ranks.saturating_sub(1).to_string().len()
}
