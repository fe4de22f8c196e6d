//! Times below which a step can't be, before it is planned and before it is simulated.
//!
//! In training, a rank computes nothing before the first micro-batch has come through the stages
//! below its lowest, and when it has computed everything, a gradient has still to go back through
//! them. That holds for every schedule that runs whole backwards.

use std::ops::Range;

use stovepipe_schedule::{Link, MicroBatch, Plan, Retention, Stage};

use super::request::{Group, Request};
use super::sized::SizedLayers;

/// So much is left for rounding: sums are taken in another order than in a simulation.
const ROUNDING: f64 = 1.0 - 1e-9;

/// A time below which no cut can bring a step of a group.
pub(super) fn before_planning(request: &Request<'_>, group: &Group, sized: &SizedLayers) -> f64 {
    let (ranks, layers) = (group.shape.ranks, sized.layers());
    let all = 0..layers;
    let speeds = || (0..ranks).map(|rank| request.cluster.speed(rank));
    let (speed, fastest) = (speeds().sum::<f64>(), speeds().fold(0.0, f64::max));
    let slowest = speeds().fold(f64::INFINITY, f64::min);
    let hop = least_hop(request, sized, ranks);
    let work = |layers: &Range<usize>| sized.work(layers, 0.0);
    // The lowest stage of a rank has below it as many stages, of a layer at least, as there are
    // ranks whose lowest is lower.
    let below = |lower: usize| {
        let times = sized.least(&(0..lower));
        let hops = 2.0 * lower as f64 * (hop.latency + hop.transfer);
        (times.forward + times.backward) / fastest + hops
    };
    let fill: f64 = (0..ranks).map(below).sum();
    let mut bound = (work(&all) + slowest * fill) / speed;
    let longest = (0..layers).map(|layer| work(&(layer..layer + 1)));
    bound = bound.max(longest.fold(0.0, f64::max) / fastest);
    if group.shape.stages_per_rank == 1 {
        let last = work(&(layers - 1..layers)) / fastest;
        bound = bound.max(with_fill(sized, ranks, fastest)).max(below(ranks - 1) + last);
    }
    if ranks > 1 {
        // All messages of a link go one after the other, the first and the last all the way.
        let least = sized.least(&all);
        let queue = (sized.micro_batches - 1) as f64 * hop.transfer;
        bound = bound.max((least.forward + least.backward) / fastest + queue);
    }
    ROUNDING * (bound + sized.updates(&all) / speed) + gathers(request, ranks)
}

/// The least that a message between two stages of so many ranks can take.
fn least_hop(request: &Request<'_>, sized: &SizedLayers, ranks: usize) -> Link {
    let bytes = (1..sized.layers()).map(|cut| sized.boundary(cut)).min().unwrap_or(0);
    let links = (1..ranks).map(|rank| {
        let wire = request.cluster.wire(rank - 1, rank);
        Link::of_bytes(wire.latency, bytes as f64, wire.bandwidth)
    });
    links
        .reduce(|a, b| Link {
            latency: a.latency.min(b.latency),
            transfer: a.transfer.min(b.transfer),
        })
        .unwrap_or_default()
}

/// The time of one stage on each of equal ranks with what it takes to fill and to drain.
///
/// Let x be a rank's time for one micro-batch, and M their number. A rank needs M x, and before and
/// behind it are the parts of all ranks below for one micro-batch: at least ρ of what it takes on
/// average. If no rank is to end after y, then x of rank r is at most (y − ρ Σ x of those below) /
/// M, and all together at most (y / ρ) (1 − (1 − ρ / M)^P). They have to be the whole model.
fn with_fill(sized: &SizedLayers, ranks: usize, fastest: f64) -> f64 {
    let layers = || (0..sized.layers()).map(|layer| layer..layer + 1);
    let average = |layer: &Range<usize>| sized.work(layer, 0.0) / sized.micro_batches as f64;
    let least = |layer: &Range<usize>| {
        let times = sized.least(layer);
        times.forward + times.backward
    };
    let timed = layers().filter(|layer| average(layer) > 0.0);
    let part = timed.map(|layer| least(&layer) / average(&layer)).fold(1.0, f64::min);
    let model = average(&(0..sized.layers()));
    if part <= 0.0 || model <= 0.0 {
        return 0.0;
    }
    let count = i32::try_from(ranks).unwrap_or(i32::MAX);
    let all = 1.0 - (1.0 - part / sized.micro_batches as f64).powi(count);
    part * model / all / fastest
}

/// The work of a stage in a step, in seconds of its rank.
#[derive(Clone, Copy, Default)]
pub(super) struct StageLoad {
    /// For all micro-batches.
    work: f64,
    /// The shortest forward, and the shortest backward.
    forward: f64,
    backward: f64,
    update: f64,
}

/// A message between two stages on different ranks.
#[derive(Clone, Copy, Default)]
struct Crossing {
    crosses: bool,
    send: f64,
    receive: f64,
    link: Link,
}

/// The estimate of a step of a cut, which is a bound as well.
pub(super) struct Estimator<'a> {
    request: &'a Request<'a>,
    sized: &'a SizedLayers,
    /// The rank of each stage.
    placement: Vec<usize>,
    /// The lowest stage of each rank.
    lowest: Vec<usize>,
    gathers: f64,
}

impl<'a> Estimator<'a> {
    pub(super) fn new(request: &'a Request<'a>, sized: &'a SizedLayers, plan: &Plan) -> Self {
        let placement: Vec<usize> = plan.placement().iter().map(|rank| rank.index()).collect();
        let lowest = |rank| placement.iter().position(|other| *other == rank).unwrap_or(0);
        let lowest = (0..plan.ranks()).map(lowest).collect();
        Self { request, sized, placement, lowest, gathers: gathers(request, plan.ranks()) }
    }

    pub(super) fn stages(&self) -> usize {
        self.placement.len()
    }

    fn load(&self, stage: usize, layers: &Range<usize>, work: f64) -> StageLoad {
        let speed = self.request.cluster.speed(self.placement[stage]);
        let least = self.sized.least(layers);
        StageLoad {
            work: work / speed,
            forward: least.forward / speed,
            backward: least.backward / speed,
            update: self.sized.updates(layers) / speed,
        }
    }

    /// The time of a cut, given by the end of each stage, if each stage recomputes such a part of
    /// everything.
    pub(super) fn with_shares(&self, ends: &[usize], shares: &[f64]) -> f64 {
        let loads = ranges(ends).enumerate().map(|(stage, layers)| {
            self.load(stage, &layers, self.sized.work(&layers, shares[stage]))
        });
        self.time(ends, &loads.collect::<Vec<_>>())
    }

    /// A time below which a step of a cut can't be, with exactly what is recomputed.
    pub(super) fn bound(&self, ends: &[usize], retention: &Retention) -> f64 {
        let loads = ranges(ends).enumerate().map(|(stage, layers)| {
            let of = |m: MicroBatch| {
                let class = self.sized.class(m.index());
                let dropped = retention.of(Stage::new(stage), m).dropped().iter();
                let again = dropped.map(|segment| {
                    let layers = layers.start + segment.start..layers.start + segment.end;
                    self.sized.recompute(class, &layers)
                });
                again.sum::<f64>()
            };
            let again: f64 = MicroBatch::first(self.sized.micro_batches).map(of).sum();
            self.load(stage, &layers, self.sized.work(&layers, 0.0) + again)
        });
        ROUNDING * self.time(ends, &loads.collect::<Vec<_>>())
    }

    /// The message behind a stage.
    fn crossing(&self, ends: &[usize], stage: usize) -> Crossing {
        let (from, to) = (self.placement[stage], self.placement[stage + 1]);
        if from == to {
            return Crossing::default();
        }
        let bytes = self.sized.boundary(ends[stage]);
        let wire = self.request.cluster.wire(from, to);
        let handling = self.request.cluster.message_costs().of(bytes);
        Crossing {
            crosses: true,
            send: handling.send,
            receive: handling.receive,
            link: Link::of_bytes(wire.latency, bytes as f64, wire.bandwidth),
        }
    }

    fn time(&self, ends: &[usize], loads: &[StageLoad]) -> f64 {
        let (stages, ranks) = (loads.len(), self.lowest.len());
        let micro_batches = self.sized.micro_batches as f64;
        let (mut work, mut updates) = (vec![0.0; ranks], vec![0.0; ranks]);
        // Before the first forward of a stage, and behind its last backward.
        let (mut heads, mut tails) = (vec![0.0; stages], vec![0.0; stages]);
        let (mut head, mut tail, mut slowest) = (0.0, 0.0, 0.0f64);
        for (stage, load) in loads.iter().enumerate() {
            let rank = self.placement[stage];
            work[rank] += load.work;
            updates[rank] += load.update;
            (heads[stage], tails[stage]) = (head, tail);
            (head, tail) = (head + load.forward, tail + load.backward);
            if stage + 1 == stages {
                break;
            }
            let Crossing { crosses, send, receive, link } = self.crossing(ends, stage);
            if crosses {
                let next = self.placement[stage + 1];
                for rank in [rank, next] {
                    work[rank] += micro_batches * (send + receive);
                }
                head += send + link.transfer + link.latency;
                tail += receive + link.transfer + link.latency;
                slowest = slowest.max((micro_batches - 1.0) * link.transfer);
            }
        }
        let flush = (0..ranks).map(|rank| {
            let lowest = self.lowest[rank];
            heads[lowest] + work[rank] + tails[lowest]
        });
        // All messages of a link go one after the other, the first and the last all the way.
        let flush = flush.fold(head + tail + slowest, f64::max);
        flush + self.gathers + updates.into_iter().fold(0.0, f64::max)
    }
}

/// The layers of each stage.
fn ranges(ends: &[usize]) -> impl Iterator<Item = Range<usize>> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(ends.iter().copied()).map(|(start, end)| start..end)
}

/// The time in which ranks agree in a step: on its beginning, its end, and that all have updated.
/// Messages go from rank to rank in as many rounds as the logarithm of their number.
pub(super) fn gathers(request: &Request<'_>, ranks: usize) -> f64 {
    const GATHERS: f64 = 3.0;
    let rounds = ranks.next_power_of_two().trailing_zeros();
    let message = request.cluster.message_costs().of(0);
    let hop = request.cluster.worst_latency(ranks) + message.send + message.receive;
    GATHERS * f64::from(rounds) * hop
}
