//! Plans as text: aligned by slot when valid, by cell with the bad one in brackets when not.

use std::fmt::Write;
use std::ops::Range;

use crate::progress::slots;
use crate::{Action, Plan};

/// The cell that an error is about.
pub(crate) struct Mark {
    pub(crate) rank: usize,
    pub(crate) position: usize,
    /// An action that should be there and isn't: shown behind the marked cell.
    pub(crate) missing: Option<Action>,
}

/// How many cells are shown before and after a marked one, and at most in all ranks.
const CELLS_AROUND: usize = 8;
const RANKS_AROUND: usize = 8;

/// A valid plan with every action taking one slot.
pub(crate) fn slot_grid(plan: &Plan) -> String {
    let (slots, length) = columns(plan);
    let actions = plan.rows().iter().flatten();
    let width = actions.map(|action| action.to_string().len()).max().unwrap_or(1);
    let label = label_width(plan.ranks());
    let idle = |line: &mut String, slots: Range<usize>| {
        for _ in slots {
            let _ = write!(line, " {:^width$}", ".");
        }
    };
    let mut out = String::new();
    for (rank, (row, slots)) in plan.rows().iter().zip(&slots).enumerate() {
        let mut line = format!("rank {rank:label$} |");
        let mut next = 0;
        for (action, &slot) in row.iter().zip(slots) {
            idle(&mut line, next..slot);
            let _ = write!(line, " {:^width$}", action.to_string());
            next = slot + 1;
        }
        idle(&mut line, next..length);
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// The column of each action of a valid plan, and the number of columns: those of its slots, idle ones
/// between them, unless that makes an absurdly large table; then idle slots are left out.
pub(crate) fn columns(plan: &Plan) -> (Vec<Vec<usize>>, usize) {
    const MAX_CELLS: usize = 10_000_000;
    let slots = slots(plan);
    let length = slots.iter().filter_map(|row| row.last()).max().map_or(0, |last| last + 1);
    if length.saturating_mul(plan.ranks()) <= MAX_CELLS {
        return (slots, length);
    }
    (plan.rows().iter().map(|row| (0..row.len()).collect()).collect(), 0)
}

/// Rows as they stand, whatever they hold, with one cell in brackets. A large grid is cut to the
/// neighbourhood of the mark.
pub(crate) fn cell_grid<A>(rows: &[Vec<A>], mark: Option<Mark>) -> String
where
    A: Copy + Into<Action>,
{
    let (mark_rank, mark_cell) = mark.as_ref().map_or((0, 0), |m| (m.rank, m.position));
    let first_rank = mark_rank.saturating_sub(RANKS_AROUND);
    let last_rank = (mark_rank + RANKS_AROUND).min(rows.len().saturating_sub(1));
    let first = mark_cell.saturating_sub(CELLS_AROUND);
    let end = mark_cell + CELLS_AROUND + 1;
    let label = label_width(rows.len());
    let mut lines: Vec<Vec<String>> = Vec::new();
    for (rank, row) in rows.iter().enumerate().take(last_rank + 1).skip(first_rank) {
        let marked = mark.as_ref().filter(|m| m.rank == rank);
        let mut cells =
            vec![if first > 0 && !row.is_empty() { "…".to_owned() } else { String::new() }];
        for (position, action) in row.iter().enumerate().take(end).skip(first) {
            let action: Action = (*action).into();
            let here = marked.filter(|m| m.position == position);
            cells.push(match here {
                Some(Mark { missing: Some(missing), .. }) => format!("{action} [{missing}?]"),
                Some(_) => format!("[{action}]"),
                None => action.to_string(),
            });
        }
        if let Some(Mark { position, missing: Some(missing), .. }) = marked
            && *position >= row.len()
        {
            cells.push(format!("[{missing}?]"));
        }
        if row.len() > end {
            cells.push("…".to_owned());
        }
        lines.push(cells);
    }
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|c| {
            lines.iter().filter_map(|l| l.get(c)).map(|t| t.chars().count()).max().unwrap_or(0)
        })
        .collect();
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

fn label_width(ranks: usize) -> usize {
    ranks.saturating_sub(1).to_string().len()
}
