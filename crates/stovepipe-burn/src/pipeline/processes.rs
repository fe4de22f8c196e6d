//! The calls of pipelines whose ranks are processes: what processes tell each other in addition
//! to a step.

use std::ops::Range;

use stovepipe_runtime::StepError;
use stovepipe_schedule::{Span, Timeline};
use stovepipe_transport::Wire;

use crate::error::train::TrainError;
use crate::pipeline::Pipeline;
use crate::value::boundary::Boundary;
use crate::value::packet::Packet;

impl<I: Boundary, O: Boundary, T> Pipeline<I, O, T> {
    /// Returns the number of this process, which is its rank; 0 where all ranks are in this
    /// process.
    ///
    /// The process of number 0 may print what all know.
    #[must_use]
    pub fn process(&self) -> usize {
        self.process
    }

    /// Gathers bytes, such as a part of a report, from every process.
    ///
    /// Returns the contributions of all in the order of their ranks. A pipeline within one
    /// process returns its own.
    ///
    /// # Errors
    ///
    /// [`StepError`], as of a step.
    pub fn gather(&mut self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, StepError> {
        self.workers.gather(bytes)
    }

    /// Puts together the timeline of a step from what each process knows: its own rank's spans.
    ///
    /// Times are of the clock of each process, and begin when all had agreed on the step. Every
    /// process has to call it.
    ///
    /// # Errors
    ///
    /// [`TrainError::Step`], as of a step, or [`TrainError::Timeline`].
    pub fn gather_timeline(&mut self, own: &Timeline) -> Result<Timeline, TrainError> {
        if !self.workers.is_spread() {
            return Ok(own.clone());
        }
        let rank = self.process;
        let lines = own.spans(rank).iter().map(|span| {
            let Span { action, start, end } = span;
            format!("{action} {start} {end}\n")
        });
        let update = own.update(rank).map(|update| format!("{} {}", update.start, update.end));
        let text = lines.chain(update).collect::<String>();
        let gathered = self.gather(text.into_bytes())?;
        let rows = gathered
            .iter()
            .map(|bytes| read_row(&String::from_utf8_lossy(bytes)).ok_or(TrainError::Timeline));
        let (spans, updates) = rows.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        Ok(Timeline::new(spans, updates))
    }

    /// Gives the prediction of the process with the last stage to all processes.
    pub(crate) fn share(&mut self, own: Option<Packet>) -> Result<Option<Packet>, TrainError> {
        if !self.workers.is_spread() {
            return Ok(own);
        }
        let mut bytes = Vec::new();
        if let Some(own) = own {
            let tail = own.encode(&mut bytes)?;
            bytes.extend(tail.as_ref());
        }
        let gathered = self.gather(bytes)?;
        let shared = gathered.iter().find(|bytes| !bytes.is_empty());
        Ok(shared.map(|bytes| Packet::decode(bytes)).transpose()?)
    }
}

/// The spans of one rank, and the times of its update.
type Row = (Vec<Span>, Option<Range<f64>>);

/// Reads a line for each span, as `action start end`, and one of two times for the update.
fn read_row(text: &str) -> Option<Row> {
    let (mut spans, mut update) = (Vec::new(), None);
    for line in text.lines() {
        match *line.split(' ').collect::<Vec<_>>() {
            [action, start, end] => spans.push(Span {
                action: action.parse().ok()?,
                start: start.parse().ok()?,
                end: end.parse().ok()?,
            }),
            [start, end] => update = Some(start.parse().ok()?..end.parse().ok()?),
            _ => return None,
        }
    }
    Some((spans, update))
}
