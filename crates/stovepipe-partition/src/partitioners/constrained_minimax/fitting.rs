//! The search for any cut that fits, where several parts share a rank's memory.
//!
//! Cuts are shifted at random, alone or several in a row, which hands a layer's worth from one part
//! to another one far away. Shifts that make things worse become rarer with time (simulated
//! annealing: Kirkpatrick, Gelatt and Vecchi, Science 220, 1983). The numbers drawn are the same in
//! every process.

use std::ops::Range;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::dealt::Room;
use super::parts::Parts;
use crate::memory::{LayerBytes, Memory};

/// How much is tried.
#[derive(Clone, Copy)]
pub(super) enum Effort {
    /// As much as it may take to find a cut that fits.
    Find,
    /// Enough to show a cut that comes close, where none fits.
    Show,
}

impl Effort {
    /// The shifts that are tried from each start.
    fn shifts(self) -> usize {
        match self {
            Self::Find => 200_000,
            Self::Show => 2_000,
        }
    }
}

/// How many layers' worth of bytes a shift may cost, at first and in the end.
const HOT: f64 = 2.0;
const COLD: f64 = 0.02;

/// The bytes of consecutive layers, from sums over all layers before each.
pub(super) struct Fitting<'a, 'b> {
    parts: &'a Parts<'b>,
    memory: &'a Memory,
    fixed: Vec<u128>,
    kept: Vec<u128>,
    working: Vec<u128>,
}

impl<'a, 'b> Fitting<'a, 'b> {
    /// None if memory isn't limited.
    pub(super) fn new(parts: &'a Parts<'b>) -> Option<Self> {
        let memory = parts.memory?;
        let sums = |bytes: fn(&LayerBytes) -> u64| {
            let mut sums = vec![0u128];
            for layer in &memory.layers {
                sums.push(sums[sums.len() - 1] + u128::from(bytes(layer)));
            }
            sums
        };
        Some(Self {
            parts,
            memory,
            fixed: sums(|layer| layer.fixed),
            kept: sums(|layer| layer.kept),
            working: sums(|layer| layer.working),
        })
    }

    /// The least that these layers hold, whatever parts they are in.
    pub(super) fn least(&self, layers: Range<usize>) -> u128 {
        let in_flight = self.memory.in_flight.iter().min().copied().unwrap_or(0) as u128;
        self.fixed[layers.end] - self.fixed[layers.start]
            + in_flight * (self.kept[layers.end] - self.kept[layers.start])
    }

    /// Whether all ranks together have too little.
    pub(super) fn cannot_fit(&self) -> bool {
        let all: u128 = self.memory.capacities.iter().map(|bytes| u128::from(*bytes)).sum();
        self.least(0..self.parts.layers()) > all
    }

    /// The bytes that each rank needs for parts that begin at these cuts.
    fn needed(&self, cuts: &[usize]) -> Vec<u128> {
        let mut holds = vec![0u128; self.parts.ranks];
        let mut works = vec![0u128; self.parts.ranks];
        for (part, ends) in cuts.windows(2).enumerate() {
            let (start, end, rank) = (ends[0], ends[1], self.parts.rank(part));
            let in_flight = self.memory.in_flight[part] as u128;
            let entry = u128::from(self.memory.layers[start].entry);
            holds[rank] += self.fixed[end] - self.fixed[start];
            holds[rank] += in_flight * (self.kept[end] - self.kept[start] + entry);
            works[rank] = works[rank].max(self.working[end] - self.working[start]);
        }
        holds.into_iter().zip(works).map(|(held, working)| held + working).collect()
    }

    /// The bytes that ranks lack, added up.
    fn lacking(&self, cuts: &[usize]) -> f64 {
        let needed = self.needed(cuts).into_iter().zip(&self.memory.capacities);
        needed.map(|(needed, has)| needed.saturating_sub(u128::from(*has)) as f64).sum()
    }

    /// The cut that lacks least of those looked at, the bytes that each rank needs for it, and
    /// whether it fits.
    pub(super) fn search(&self, effort: Effort) -> (Vec<Range<usize>>, Vec<u64>, bool) {
        let mut random = StdRng::seed_from_u64(0);
        let mut best: Option<(f64, Vec<usize>)> = None;
        for start in self.starts() {
            let found = self.anneal(start, effort.shifts(), &mut random);
            if best.as_ref().is_none_or(|best| found.0 < best.0) {
                best = Some(found);
            }
            if best.as_ref().is_some_and(|best| best.0 == 0.0) {
                break;
            }
        }
        let (lacking, cuts) = best.unwrap_or_default();
        let needed = self.needed(&cuts).into_iter();
        let needed = needed.map(|bytes| u64::try_from(bytes).unwrap_or(u64::MAX)).collect();
        (cuts.windows(2).map(|ends| ends[0]..ends[1]).collect(), needed, lacking == 0.0)
    }

    /// Where to begin: even by time, by bytes that each rank may have, and by layers. There must be
    /// a cut that respects pins and groups.
    fn starts(&self) -> Vec<Vec<usize>> {
        let (layers, count) = (self.parts.layers(), self.parts.count);
        let even = self.parts.most_even(f64::MAX, Room::Unlimited);
        let even = std::iter::once(0).chain(even.ends().iter().copied()).collect();
        // The part of all bytes that a part's rank has for it.
        let share = |part: usize| {
            let rank = self.parts.rank(part);
            let sharing = self.parts.placement.iter().filter(|&&other| other == rank).count();
            self.memory.capacities[rank] as f64 / sharing as f64
        };
        let shares: Vec<f64> = (0..count).map(share).collect();
        let (all, total) = (shares.iter().sum::<f64>().max(1.0), self.least(0..layers) as f64);
        let mut reached = 0.0;
        let by_bytes = (0..=count).map(|part| {
            let wanted = reached / all * total;
            reached += shares.get(part).copied().unwrap_or(0.0);
            let cut = (0..layers).take_while(|&end| (self.least(0..end) as f64) < wanted).count();
            // Every part has a layer.
            match part {
                0 => 0,
                _ if part == count => layers,
                _ => cut.clamp(part, layers - (count - part)),
            }
        });
        let mut by_bytes: Vec<usize> = by_bytes.collect();
        for part in 1..count {
            by_bytes[part] = by_bytes[part].max(by_bytes[part - 1] + 1);
        }
        let by_layers = (0..=count).map(|part| part * layers / count).collect();
        let mut starts: Vec<Vec<usize>> = vec![even, by_bytes, by_layers];
        starts.retain(|cuts| self.is_allowed(cuts));
        starts
    }

    /// Whether cuts respect pins and groups, and every part has a layer.
    fn is_allowed(&self, cuts: &[usize]) -> bool {
        let pinned = self.parts.only.iter().enumerate();
        cuts.windows(2).all(|ends| ends[0] < ends[1])
            && cuts.iter().skip(1).all(|&cut| self.parts.open[cut])
            && pinned
                .filter_map(|(layer, part)| Some((layer, (*part)?)))
                .all(|(layer, part)| (cuts[part]..cuts[part + 1]).contains(&layer))
    }

    fn anneal(
        &self,
        mut cuts: Vec<usize>,
        shifts: usize,
        random: &mut StdRng,
    ) -> (f64, Vec<usize>) {
        let count = self.parts.count;
        let bytes = self.least(0..self.parts.layers()) as f64 / self.parts.layers() as f64;
        let mut lacking = self.lacking(&cuts);
        let mut best = (lacking, cuts.clone());
        for shift in 0..shifts {
            if best.0 == 0.0 || count < 2 {
                break;
            }
            let progress = shift as f64 / shifts as f64;
            let temperature = bytes * HOT * (COLD / HOT).powf(progress);
            let first = random.random_range(1..count);
            let last = if random.random() { first } else { random.random_range(first..count) };
            let by: usize = if random.random_ratio(1, 4) { random.random_range(2..=4) } else { 1 };
            let moved = |cut: usize, back: bool| {
                if back { cut.checked_sub(by) } else { cut.checked_add(by) }
            };
            let back: bool = random.random();
            let before = cuts[first..=last].to_vec();
            let shifted: Option<Vec<usize>> = before.iter().map(|cut| moved(*cut, back)).collect();
            let Some(shifted) = shifted else { continue };
            cuts[first..=last].copy_from_slice(&shifted);
            if cuts[first - 1] >= cuts[first]
                || cuts[last] >= cuts[last + 1]
                || !self.is_allowed_between(&cuts, first, last)
            {
                cuts[first..=last].copy_from_slice(&before);
                continue;
            }
            let found = self.lacking(&cuts);
            let worse = found - lacking;
            if worse <= 0.0 || random.random::<f64>() < (-worse / temperature).exp() {
                lacking = found;
                if lacking < best.0 {
                    best = (lacking, cuts.clone());
                }
            } else {
                cuts[first..=last].copy_from_slice(&before);
            }
        }
        best
    }

    /// Whether cuts that have been shifted respect pins and groups.
    fn is_allowed_between(&self, cuts: &[usize], first: usize, last: usize) -> bool {
        let open = cuts[first..=last].iter().all(|&cut| self.parts.open[cut]);
        open && (first - 1..=last).all(|part| {
            let layers = cuts[part]..cuts[part + 1];
            self.parts.only[layers].iter().all(|only| only.is_none_or(|only| only == part))
        })
    }
}
