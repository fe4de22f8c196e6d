//! Reads rows of action texts.

use std::str::FromStr;

use crate::words::error::PlanError;
use crate::words::text::ParseActionError;

/// Parses rows of cells, leaves out empty ones, and says where a bad cell is.
pub(crate) fn parse_rows<'a, T, R>(
    rows: impl IntoIterator<Item = R>,
) -> Result<Vec<Vec<T>>, PlanError>
where
    R: IntoIterator<Item = &'a str>,
    T: FromStr<Err = ParseActionError>,
{
    let parse_row = |(rank, row): (usize, R)| {
        row.into_iter()
            .map(str::trim)
            .enumerate()
            .filter(|(_, cell)| !cell.is_empty())
            .map(|(position, cell)| {
                cell.parse().map_err(|problem| PlanError::Parse { rank, position, problem })
            })
            .collect()
    };
    rows.into_iter().enumerate().map(parse_row).collect()
}
