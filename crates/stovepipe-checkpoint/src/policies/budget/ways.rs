//! The search of a budget: the ways to treat a rank's layers, by dynamic programming.

use std::ops::Range;

use super::rank_layer::{RankLayer, rebuilt_bytes};

/// How many ways to treat the layers are followed at once.
const MAX_WAYS: usize = 512;

/// Layers that are treated as one, and whether they are dropped.
pub(super) type Piece = (Range<usize>, bool);

/// A way to treat the layers up to some place.
#[derive(Clone, Copy)]
struct Way {
    bytes: u64,
    time: f64,
    /// The start of its last piece and whether that is dropped, and the way before it.
    piece: (usize, bool),
    before: usize,
}

/// For each number of layers from the front, the ways that aren't worse than another in both bytes
/// and time, by bytes ascending.
pub(super) struct Ways {
    table: Vec<Vec<Way>>,
}

impl Ways {
    /// With segments that rebuild at most `largest`, within `room` bytes and below `limit` of time.
    pub(super) fn search(places: &[RankLayer], largest: u64, room: u64, limit: f64) -> Self {
        let none = Way { bytes: 0, time: 0.0, piece: (0, false), before: 0 };
        let mut table = vec![vec![none]];
        for end in 1..=places.len() {
            let place = places[end - 1];
            let mut ways = Vec::new();
            let mut extend = |from: usize, bytes: u64, time: f64, is_dropped: bool| {
                let piece = (from, is_dropped);
                let extended = table[from].iter().enumerate().map(|(before, way): (_, &Way)| {
                    let (bytes, time) = (way.bytes.saturating_add(bytes), way.time + time);
                    Way { bytes, time, piece, before }
                });
                ways.extend(extended.filter(|way| way.bytes <= room && way.time < limit));
            };
            extend(end - 1, place.kept(), 0.0, false);
            let mut time = 0.0;
            for start in (place.start..end).rev() {
                if rebuilt_bytes(&places[start..end]) > largest {
                    break;
                }
                time += places[start].layer.recompute;
                extend(start, places[start].entry(), time, true);
            }
            table.push(thinned(ways, room));
        }
        Self { table }
    }

    /// The fastest: its time, and the pieces and whether each is dropped.
    pub(super) fn fastest(&self) -> Option<(f64, Vec<Piece>)> {
        let mut end = self.table.len() - 1;
        // By bytes ascending is by time descending.
        let mut way = *self.table[end].last()?;
        let time = way.time;
        let mut pieces = Vec::new();
        while end > 0 {
            let (start, is_dropped) = way.piece;
            pieces.push((start..end, is_dropped));
            way = self.table[start][way.before];
            end = start;
        }
        pieces.reverse();
        Some((time, pieces))
    }
}

/// Leaves out what is worse than another in both, and rounds bytes where too many ways remain.
fn thinned(mut ways: Vec<Way>, room: u64) -> Vec<Way> {
    let thin = |ways: &mut Vec<Way>| {
        ways.sort_by(|a, b| a.bytes.cmp(&b.bytes).then(a.time.total_cmp(&b.time)));
        let mut fastest = f64::INFINITY;
        ways.retain(|way| {
            let better = way.time < fastest;
            fastest = fastest.min(way.time);
            better
        });
    };
    thin(&mut ways);
    if ways.len() > MAX_WAYS {
        let unit = room.div_ceil(MAX_WAYS as u64).max(1);
        for way in &mut ways {
            way.bytes = way.bytes.div_ceil(unit).saturating_mul(unit);
        }
        ways.retain(|way| way.bytes <= room);
        thin(&mut ways);
    }
    ways
}
