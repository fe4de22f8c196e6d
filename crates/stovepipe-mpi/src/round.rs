//! [`Round`]: one rank's part of one gather, as plain data. In each phase every rank passes on what
//! it knows, to a rank twice as far away as in the phase before (Bruck et al. 1997). So `n` ranks
//! need log₂ n phases, and each contribution crosses every rank once.

use std::collections::BTreeMap;

/// A message of a gather that is to be sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) to: usize,
    pub(crate) phase: u32,
    pub(crate) blocks: Vec<u8>,
}

/// One gather on one rank.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// The contributions of this rank and those after it, as far as they are known.
    blocks: Vec<Vec<u8>>,
    /// The phase whose message is awaited.
    phase: u32,
    /// Messages that came before their turn.
    early: BTreeMap<u32, Vec<Vec<u8>>>,
    /// Who sent something that makes no sense.
    nonsense_from: Option<usize>,
}

impl Round {
    /// Whether this rank has contributed.
    pub(crate) fn is_joined(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Whether all contributions are known.
    pub(crate) fn is_complete(&self, ranks: usize) -> bool {
        self.blocks.len() == ranks
    }

    /// The rank whose message is awaited, if any.
    pub(crate) fn awaits(&self, me: usize, ranks: usize) -> Option<usize> {
        (self.is_joined() && !self.is_complete(ranks)).then(|| (me + self.blocks.len()) % ranks)
    }

    /// Who sent something that makes no sense.
    pub(crate) fn nonsense_from(&self) -> Option<usize> {
        self.nonsense_from
    }

    /// This rank's contribution. Returns what is to be sent now.
    pub(crate) fn join(&mut self, me: usize, ranks: usize, bytes: Vec<u8>) -> Vec<Part> {
        self.blocks.push(bytes);
        self.advance(me, ranks)
    }

    /// A message has come. Returns what is to be sent now.
    pub(crate) fn receive(
        &mut self,
        (me, from, ranks): (usize, usize, usize),
        phase: u32,
        bytes: &[u8],
    ) -> Vec<Part> {
        let distance = 1usize.checked_shl(phase).filter(|distance| *distance < ranks);
        let count = distance.map(|distance| distance.min(ranks - distance));
        let blocks = count.and_then(|count| unpack(bytes, count));
        let Some(blocks) = blocks.filter(|_| phase >= self.phase) else {
            self.nonsense_from = Some(from);
            return Vec::new();
        };
        self.early.insert(phase, blocks);
        if !self.is_joined() || phase != self.phase {
            return Vec::new();
        }
        self.take_early();
        self.advance(me, ranks)
    }

    /// Takes all contributions in rank order. Of them only the fact is kept that they are complete.
    pub(crate) fn take(&mut self, me: usize) -> Vec<Vec<u8>> {
        let ranks = self.blocks.len();
        let mut blocks = std::mem::replace(&mut self.blocks, vec![Vec::new(); ranks]);
        blocks.rotate_right(me);
        blocks
    }

    fn take_early(&mut self) -> bool {
        let blocks = self.early.remove(&self.phase);
        let came = blocks.is_some();
        self.blocks.extend(blocks.into_iter().flatten());
        self.phase += u32::from(came);
        came
    }

    /// Sends the present phase's message, and those of later ones whose messages have come before.
    fn advance(&mut self, me: usize, ranks: usize) -> Vec<Part> {
        let mut parts = Vec::new();
        while !self.is_complete(ranks) {
            let distance = self.blocks.len();
            let blocks = pack(&self.blocks[..distance.min(ranks - distance)]);
            let to = (me + ranks - distance) % ranks;
            parts.push(Part { to, phase: self.phase, blocks });
            if !self.take_early() {
                break;
            }
        }
        parts
    }
}

/// Each block after its length.
fn pack(blocks: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(blocks.iter().map(|block| 8 + block.len()).sum());
    for block in blocks {
        bytes.extend((block.len() as u64).to_le_bytes());
        bytes.extend(block);
    }
    bytes
}

fn unpack(mut bytes: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let mut blocks = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, rest) = bytes.split_first_chunk::<8>()?;
        let (block, rest) = rest.split_at_checked(u64::from_le_bytes(*length).try_into().ok()?)?;
        blocks.push(block.to_vec());
        bytes = rest;
    }
    bytes.is_empty().then_some(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets all ranks join, in the order of `order`, and delivers the newest message first or the
    /// oldest.
    fn gather(ranks: usize, order: impl IntoIterator<Item = usize>, newest: bool) -> usize {
        let mut rounds: Vec<Round> = (0..ranks).map(|_| Round::default()).collect();
        let contribution = |rank: usize| vec![rank as u8; rank % 3];
        let (mut flying, mut sent) = (Vec::new(), 0);
        let mut deliver = |rounds: &mut Vec<Round>, flying: &mut Vec<(usize, Part)>| {
            while !flying.is_empty() {
                let at = if newest { flying.len() - 1 } else { 0 };
                let (from, part) = flying.remove(at);
                let place = (part.to, from, ranks);
                let more = rounds[part.to].receive(place, part.phase, &part.blocks);
                flying.extend(more.into_iter().map(|more| (part.to, more)));
                sent += 1;
            }
        };
        for rank in order {
            let parts = rounds[rank].join(rank, ranks, contribution(rank));
            flying.extend(parts.into_iter().map(|part| (rank, part)));
            if newest {
                deliver(&mut rounds, &mut flying);
            }
        }
        deliver(&mut rounds, &mut flying);
        for (rank, round) in rounds.iter_mut().enumerate() {
            assert!(round.is_complete(ranks) && round.awaits(rank, ranks).is_none());
            assert_eq!(round.take(rank), (0..ranks).map(contribution).collect::<Vec<_>>());
            assert!(round.is_joined());
        }
        sent
    }

    #[test]
    fn everyone_learns_all_contributions_in_few_messages() {
        for ranks in 1..=17usize {
            let phases = usize::BITS - (ranks - 1).leading_zeros();
            for newest in [false, true] {
                assert_eq!(gather(ranks, 0..ranks, newest), ranks * phases as usize);
                gather(ranks, (0..ranks).rev(), newest);
                gather(ranks, (0..ranks).map(|i| (i + ranks / 2) % ranks), newest);
            }
        }
    }

    #[test]
    fn awaits_the_next_phase() {
        let mut round = Round::default();
        assert_eq!(round.awaits(1, 4), None);
        assert_eq!(round.join(1, 4, vec![1]).len(), 1);
        assert_eq!(round.awaits(1, 4), Some(2));
        assert_eq!(round.receive((1, 2, 4), 0, &pack(&[vec![2]])).len(), 1);
        assert_eq!(round.awaits(1, 4), Some(3));
    }

    #[test]
    fn nonsense_is_noticed() {
        let one_block = pack(&[vec![1, 2]]);
        for (phase, bytes) in [(0, &one_block[1..]), (0, &[]), (1, &one_block), (2, &one_block)] {
            let mut round = Round::default();
            assert_eq!(round.receive((0, 3, 4), phase, bytes), []);
            assert_eq!(round.nonsense_from(), Some(3), "phase {phase}");
        }
    }
}
