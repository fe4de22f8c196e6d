//! Improves a cut by simulation, where its price is an estimate no more.

use stovepipe_schedule::Plan;

use super::cut::{all_cuts, number_of_cuts, of_ends, shifted};
use super::fit::{Cut, Fitted};
use super::request::Request;
use super::sized::SizedLayers;
use crate::report::Choice;

/// So many actions are simulated for one choice, and cuts tried.
const ACTIONS: usize = 2_000_000;
const CUTS: usize = 2_000;

/// The choice with a better cut, if one is found. Of few cuts all are tried; otherwise the cut is
/// shifted, alone or several in a row, for as long as that helps.
pub(super) fn refined(
    request: &Request<'_>,
    sized: &SizedLayers,
    choice: &Choice,
) -> Option<Choice> {
    let configuration = &choice.configuration;
    let plan = configuration.schedule.plan(configuration.shape()).ok()?;
    let actions: usize = plan.rows().iter().map(Vec::len).sum();
    let left = CUTS.min(ACTIONS / actions.max(1));
    let mut search = Refinement { request, sized, plan: &plan, best: choice.clone(), left };
    let (layers, stages) = (sized.layers(), plan.stages());
    if number_of_cuts(layers, stages) <= left {
        for ends in all_cuts(layers, stages) {
            search.takes(&ends);
        }
    } else {
        search.shift();
    }
    (search.best.seconds < choice.seconds).then_some(search.best)
}

/// The state of one choice's refinement.
struct Refinement<'a> {
    request: &'a Request<'a>,
    sized: &'a SizedLayers,
    plan: &'a Plan,
    best: Choice,
    /// How many cuts may still be tried.
    left: usize,
}

impl Refinement<'_> {
    /// Takes a cut if it fits and is faster. Returns whether it is.
    fn takes(&mut self, ends: &[usize]) -> bool {
        let (request, sized, plan) = (self.request, self.sized, self.plan);
        let configuration = &self.best.configuration;
        self.left = self.left.saturating_sub(1);
        let Some(partition) = of_ends(ends) else { return false };
        let priced =
            Cut { request, configuration, plan, sized, partition }.price(self.best.seconds);
        match priced {
            Ok(Fitted::Choice(choice)) if choice.seconds < self.best.seconds => {
                self.best = choice;
                true
            }
            _ => false,
        }
    }

    /// Shifts cuts. Short rows come first: they are few, and most of what there is to gain.
    fn shift(&mut self) {
        let mut ends = self.best.partition.ends().to_vec();
        let cuts = ends.len() - 1;
        let mut improved = true;
        while improved {
            improved = false;
            for length in 1..=cuts {
                for first in 0..=cuts - length {
                    for up in [false, true] {
                        if self.left == 0 {
                            return;
                        }
                        let moved = shifted(&ends, first..first + length, up);
                        if let Some(moved) = moved.filter(|moved| self.takes(moved)) {
                            (ends, improved) = (moved, true);
                        }
                    }
                }
            }
        }
    }
}
