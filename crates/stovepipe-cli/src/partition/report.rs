//! A partition as it is shown: the time and the bytes of parts and ranks, and which rank is the
//! bottleneck.

use serde::Serialize;
use stovepipe_partition::{Loads, Memory, Partition};

use crate::output;
use crate::units::{self, Unit};

/// Says all that is known of a partition.
#[derive(Serialize)]
pub(super) struct Report {
    /// Layers in each part.
    sizes: Vec<usize>,
    /// The cost of the busiest rank.
    bottleneck: f64,
    bottleneck_rank: usize,
    /// No partition has a smaller bottleneck than this; there is none if that of the partition is
    /// proven to be the smallest, or nothing is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    bound: Option<f64>,
    /// The cost of each part on its rank.
    costs: Vec<f64>,
    /// The rank of each part.
    placement: Vec<usize>,
    /// The bytes that each part needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Vec<u64>>,
    ranks: Vec<RankLoad>,
}

#[derive(Serialize)]
struct RankLoad {
    cost: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// The bytes that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<u64>,
}

impl Report {
    pub(super) fn new(
        partition: &Partition,
        bound: Option<f64>,
        loads: Loads,
        memory: Option<&Memory>,
        is_limited: bool,
    ) -> Self {
        let times = loads.rank_times.iter().copied().enumerate();
        // Of equal ones the first.
        let (bottleneck_rank, bottleneck) = times
            .reduce(|most, rank| if rank.1 > most.1 { rank } else { most })
            .unwrap_or((0, 0.0));
        let rank = |(rank, &cost): (usize, &f64)| RankLoad {
            cost,
            bytes: memory.map(|_| loads.rank_bytes[rank]),
            memory: memory.filter(|_| is_limited).map(|memory| memory.capacities[rank]),
        };
        Self {
            sizes: partition.sizes(),
            bottleneck,
            bottleneck_rank,
            bound,
            ranks: loads.rank_times.iter().enumerate().map(rank).collect(),
            costs: loads.part_times,
            placement: loads.placement,
            bytes: memory.map(|_| loads.part_bytes),
        }
    }

    /// The rank that lacks most bytes, how many it needs and how many it lacks.
    pub(super) fn lacking(&self) -> Option<(usize, u64, u64)> {
        let ranks = self.ranks.iter().enumerate();
        let lacks = ranks.filter_map(|(rank, load)| {
            let needed = load.bytes?;
            Some((rank, needed, needed.checked_sub(load.memory?).filter(|lacks| *lacks > 0)?))
        });
        lacks.max_by_key(|(_, _, lacks)| *lacks)
    }

    pub(super) fn to_text(&self, partition: &Partition, unit: Unit, byte_units: bool) -> String {
        let show = |bytes: u64| units::show_bytes(bytes, byte_units);
        let mut header = vec!["part", "rank", "layers", "cost"];
        header.extend(self.bytes.as_ref().map(|_| "bytes"));
        let mut parts = output::table(header);
        for (part, range) in partition.ranges().enumerate() {
            let layers = match range.len() {
                1 => range.start.to_string(),
                _ => format!("{} to {}", range.start, range.end - 1),
            };
            let (rank, cost) = (self.placement[part].to_string(), unit.show(self.costs[part]));
            let mut row = vec![part.to_string(), rank, layers, cost];
            row.extend(self.bytes.as_ref().map(|bytes| show(bytes[part])));
            parts.add_row(row);
        }
        let mut text = format!("{parts}\n");
        let has_memory = self.ranks.iter().any(|rank| rank.memory.is_some());
        if self.ranks.len() < self.costs.len() || has_memory {
            text.push_str(&format!("{}\n", self.ranks_table(unit, byte_units)));
        }
        let mean = self.ranks.iter().map(|rank| rank.cost).sum::<f64>() / self.ranks.len() as f64;
        text.push_str(&format!(
            "bottleneck: rank {} with {}; the mean is {}\n",
            self.bottleneck_rank,
            unit.show(self.bottleneck),
            unit.show(mean)
        ));
        if let Some(bound) = self.bound {
            let bound = unit.show(bound);
            text.push_str(&format!("not all cuts were looked at; none has less than {bound}\n"));
        }
        text
    }

    fn ranks_table(&self, unit: Unit, byte_units: bool) -> comfy_table::Table {
        let mut header = vec!["rank", "parts", "cost"];
        let (bytes, memory) = match self.ranks.first() {
            Some(rank) => (rank.bytes.is_some(), rank.memory.is_some()),
            None => (false, false),
        };
        header.extend(bytes.then_some("bytes"));
        header.extend(memory.then_some("memory"));
        let mut table = output::table(header);
        for (number, rank) in self.ranks.iter().enumerate() {
            let parts = self.placement.iter().enumerate().filter(|(_, rank)| **rank == number);
            let parts: Vec<String> = parts.map(|(part, _)| part.to_string()).collect();
            let mut row = vec![number.to_string(), parts.join(", "), unit.show(rank.cost)];
            let shown = rank.bytes.into_iter().chain(rank.memory);
            row.extend(shown.map(|bytes| units::show_bytes(bytes, byte_units)));
            table.add_row(row);
        }
        table
    }
}
