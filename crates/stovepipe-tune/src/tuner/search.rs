//! The search: every configuration is bounded, and simulated if it may be the fastest, or as fast
//! for all that can be told and simpler.
//!
//! Work is done in rounds of a fixed size on all cores. What a round leaves out depends on the
//! rounds before it only, so that the answer is the same for any number of threads.

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::prelude::*;
use stovepipe_checkpoint::CheckpointPolicy;
use stovepipe_schedule::{Plan, Shape};

use super::bound::before_planning;
use super::fit::{Fitted, check_plan, fit};
use super::refine::refined;
use super::refusal::Refusal;
use super::request::{Group, Request};
use super::room::{lacking_in_all, lacking_in_order};
use super::sized::SizedLayers;
use crate::report::{Bounded, Choice, Rejected, Report};

/// Groups that are settled at a time; fewer at first, until there is something to compare with.
const ROUND: usize = 16;
const FIRST_ROUND: usize = 4;
/// The fastest choices whose cut is improved by simulation: as far as they aren't slower than the
/// fastest by a larger part, and at most so many, of which fewer if their plans are large.
const REFINED_WITHIN: f64 = 0.1;
const REFINED: usize = 256;
const REFINED_LARGE: usize = 16;
/// A plan with more forwards and backwards of stages is large.
const LARGE: usize = 1_000;

/// So many groups of a schedule are tried to show what it takes.
const SHOWN: usize = 8;

/// The ranks and the stages per rank of a configuration: fewer are simpler.
type Size = (usize, usize);

/// Configurations of one group that aren't settled yet.
struct Open {
    group: Group,
    policies: Vec<Arc<dyn CheckpointPolicy>>,
    /// They take at least so long.
    bound: f64,
    /// The group's place among all, and that of the first policy.
    place: (usize, usize),
}

impl Open {
    fn size(&self) -> Size {
        (self.group.shape.ranks, self.group.shape.stages_per_rank)
    }
}

/// The findings about a configuration that was looked at.
enum Outcome {
    Choice(Choice),
    Rejected(Rejected),
    /// It can't be planned, which nobody asked for.
    Unplanned(Rejected),
    Open(Open),
}

/// A key of what is open: the bits of a bound, which has the order of numbers as it isn't negative,
/// and the place.
type Key = (u64, (usize, usize));

/// The state of a search.
pub(super) struct Search<'a> {
    request: &'a Request<'a>,
    /// The costs of the layers, by the number of micro-batches.
    sized: BTreeMap<usize, SizedLayers>,
    open: BTreeMap<Key, Open>,
    report: Report,
    /// The first that couldn't be planned: the reason if nothing else could either.
    unplanned: Option<Rejected>,
    /// Groups that were looked at, and all.
    settled: usize,
    groups: usize,
}

impl<'a> Search<'a> {
    pub(super) fn new(request: &'a Request<'a>, groups: Vec<Group>) -> Self {
        let mut sized = BTreeMap::new();
        for Group { shape: Shape { micro_batches: m, .. }, .. } in &groups {
            sized.entry(*m).or_insert_with(|| SizedLayers::new(request, *m));
        }
        let bounds: Vec<f64> = groups
            .par_iter()
            .map(|group| before_planning(request, group, &sized[&group.shape.micro_batches]))
            .collect();
        let report = Report { choices: Vec::new(), rejected: Vec::new(), bounded: Vec::new() };
        let (settled, count) = (0, groups.len());
        let (open, unplanned) = (BTreeMap::new(), None);
        let mut search = Self { request, sized, open, report, unplanned, settled, groups: count };
        for (place, (group, bound)) in groups.into_iter().zip(bounds).enumerate() {
            let policies = request.policies.clone();
            search.leave_open(Open { group, policies, bound, place: (place, 0) });
        }
        search
    }

    /// Settles everything.
    pub(super) fn run(mut self) -> Report {
        self.fastest();
        self.simplest();
        self.one_of_each_schedule();
        self.refine();
        self.tell_progress(self.groups);
        let bounded =
            self.open.into_values().flat_map(|Open { group, policies, bound, .. }| {
                let bounded = policies.into_iter().map(move |policy| Bounded {
                    configuration: group.with(&policy),
                    at_least: bound,
                });
                bounded.collect::<Vec<_>>()
            });
        self.report.bounded = bounded.collect();
        if self.report.choices.is_empty() && self.report.rejected.is_empty() {
            self.report.rejected.extend(self.unplanned);
        }
        self.report.rejected.sort_by_key(|rejected| rejected.missing.unwrap_or(u64::MAX));
        self.report.sort();
        self.report
    }

    fn leave_open(&mut self, open: Open) {
        self.open.insert((open.bound.max(0.0).to_bits(), open.place), open);
    }

    /// The time of the fastest choice so far.
    fn best(&self) -> f64 {
        let times = self.report.choices.iter().map(|choice| choice.seconds);
        times.fold(f64::INFINITY, f64::min)
    }

    /// Settles all that may be the fastest.
    fn fastest(&mut self) {
        let mut size = FIRST_ROUND;
        loop {
            let limit = if self.request.exhaustive { f64::INFINITY } else { self.best() };
            let mut round = Vec::new();
            while let Some(next) = self.open.first_entry().filter(|_| round.len() < size) {
                if next.get().bound > limit {
                    break;
                }
                round.push(next.remove());
            }
            if round.is_empty() {
                return;
            }
            self.settle(&round, limit);
            size = ROUND;
        }
    }

    /// Settles what is no less simple than the choice so far and may be as fast for all that can be
    /// told, the simplest first, until something is.
    fn simplest(&mut self) {
        let limit = self.best() * (1.0 + Report::TOLERANCE);
        if !limit.is_finite() {
            return;
        }
        let may_be = self.open.values().filter(|open| open.bound <= limit);
        let mut sizes: Vec<Size> = may_be.map(Open::size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        for size in sizes {
            let level = self.report.choices.iter().filter(|choice| choice.seconds <= limit);
            let simplest =
                level.map(|Choice { configuration: c, .. }| (c.ranks, c.stages_per_rank)).min();
            if simplest.is_some_and(|simplest| simplest < size) {
                return;
            }
            let is_next = |_: &Key, open: &mut Open| open.bound <= limit && open.size() == size;
            let round: Vec<Open> =
                self.open.extract_if(.., is_next).map(|(_, open)| open).collect();
            for some in round.chunks(ROUND) {
                self.settle(some, limit);
            }
        }
    }

    /// Settles something of every schedule, so that one sees how far behind it is.
    fn one_of_each_schedule(&mut self) {
        let names = self.open.values().map(|open| open.group.schedule.name().to_owned());
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            for _ in 0..SHOWN {
                let is_shown = |choice: &Choice| choice.configuration.schedule.name() == name;
                if self.report.choices.iter().any(is_shown) {
                    break;
                }
                let next = self.open.iter().find(|(_, o)| o.group.schedule.name() == name);
                let Some(next) = next.map(|(key, _)| *key) else { break };
                let open: Vec<Open> = self.open.remove(&next).into_iter().collect();
                self.settle(&open, f64::INFINITY);
            }
        }
    }

    /// Improves the cuts of the fastest choices by simulation.
    fn refine(&mut self) {
        // Cuts that are asked for stay as they are.
        if self.request.partitioners.is_some() {
            return;
        }
        self.report.choices.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let limit = self.best() * (1.0 + REFINED_WITHIN);
        let near = self.report.choices.partition_point(|choice| choice.seconds <= limit);
        let is_large = |choice: &Choice| {
            let Choice { configuration: c, partition, .. } = choice;
            2 * partition.parts() * c.micro_batches > LARGE
        };
        let count = match self.report.choices[..near].iter().any(is_large) {
            true => near.min(REFINED_LARGE),
            false => near.min(REFINED),
        };
        let (request, sized) = (self.request, &self.sized);
        self.report.choices[..count].par_iter_mut().for_each(|choice| {
            let sized = &sized[&choice.configuration.micro_batches];
            if let Some(better) = refined(request, sized, choice) {
                *choice = better;
            }
        });
    }

    /// Looks at groups. What is bound to take longer than `limit` isn't simulated and stays open.
    fn settle(&mut self, round: &[Open], limit: f64) {
        let (request, sized) = (self.request, &self.sized);
        let outcomes: Vec<Vec<Outcome>> = round
            .par_iter()
            .map(|open| looked_at(request, open, &sized[&open.group.shape.micro_batches], limit))
            .collect();
        for outcome in outcomes.into_iter().flatten() {
            match outcome {
                Outcome::Choice(choice) => self.report.choices.push(choice),
                Outcome::Rejected(rejected) => self.report.rejected.push(rejected),
                Outcome::Unplanned(rejected) => {
                    self.unplanned.get_or_insert(rejected);
                }
                Outcome::Open(open) => self.leave_open(open),
            }
        }
        self.settled += round.iter().filter(|open| open.place.1 == 0).count();
        self.tell_progress(self.settled.min(self.groups));
    }

    fn tell_progress(&self, settled: usize) {
        if let Some(progress) = &self.request.progress {
            progress(settled, self.groups);
        }
    }
}

/// Plans a group once, and looks at its policies.
fn looked_at(request: &Request<'_>, open: &Open, sized: &SizedLayers, limit: f64) -> Vec<Outcome> {
    let Open { group, policies, place, .. } = open;
    let rejected = |policy: &Arc<dyn CheckpointPolicy>, Refusal { reason, missing }: Refusal| {
        Rejected { configuration: group.with(policy), reason, missing }
    };
    let plan = match plan_of(request, group) {
        Ok(plan) => plan,
        Err(refusal) => {
            let unasked = refusal.missing.is_none() && !request.asks_for_shapes();
            let kind = if unasked { Outcome::Unplanned } else { Outcome::Rejected };
            return policies.iter().map(|p| kind(rejected(p, refusal.clone()))).collect();
        }
    };
    let outcome = |(number, policy): (usize, &Arc<dyn CheckpointPolicy>)| match fit(
        request,
        &group.with(policy),
        &plan,
        sized,
        limit,
    ) {
        Ok(Fitted::Choice(choice)) => Outcome::Choice(choice),
        Ok(Fitted::Bounded(bound)) => Outcome::Open(Open {
            group: group.clone(),
            policies: vec![Arc::clone(policy)],
            bound,
            place: (place.0, place.1 + number + 1),
        }),
        Err(refusal) => Outcome::Rejected(rejected(policy, refusal)),
    };
    policies.iter().enumerate().map(outcome).collect()
}

/// The plan of a group, if it can be priced and memory suffices for parameters and states however
/// the layers are cut.
fn plan_of(request: &Request<'_>, group: &Group) -> Result<Plan, Refusal> {
    if let Some(capacities) = request.cluster.capacities(group.shape.ranks) {
        let layers = request.profile.layers();
        let bytes = |layer: usize| layers[layer].lasting_bytes();
        let missing = match group.shape.stages_per_rank {
            1 => lacking_in_order(layers.len(), &capacities, |_, layer| bytes(layer)),
            _ => lacking_in_all(layers.len(), &capacities, bytes),
        };
        if let Some(missing) = missing {
            let reason = format!(
                "each of {} ranks lacks {missing} bytes for parameters and optimizer state alone",
                group.shape.ranks
            );
            return Err(Refusal { reason, missing: Some(missing) });
        }
    }
    let plan = group.schedule.plan(group.shape)?;
    check_plan(&plan)?;
    Ok(plan)
}
