//! The routes of skip connections along the edges of a stage, and the packing of their values
//! there.

use std::collections::HashMap;

use stovepipe_partition::Partition;
use stovepipe_schedule::{Edge, Edges, Stage};

use crate::model::skips::Skip;
use crate::value::packet::Packet;

/// The names of the skips that travel along each edge of a stage, in the order of the edges.
#[derive(Debug, Clone, Default)]
pub(crate) struct Routes {
    pub(crate) incoming: Vec<Vec<String>>,
    pub(crate) outgoing: Vec<Vec<String>>,
    /// Those of the incoming edges along which gradients go back.
    pub(crate) returning: Vec<Vec<String>>,
}

impl Routes {
    /// Finds the routes of a stage.
    pub(crate) fn of(stage: Stage, edges: &Edges, skips: &[Skip], partition: &Partition) -> Self {
        let skips_along = |edge: Edge| {
            let travels = |skip: &&Skip| {
                partition.part_of(skip.from) == edge.from.index()
                    && partition.part_of(skip.to) == edge.to.index()
            };
            skips.iter().filter(travels).map(|skip| skip.name.clone()).collect()
        };
        let returning = edges.incoming(stage).filter(|edge| edges.carries_gradient(edge));
        Self {
            returning: returning.map(skips_along).collect(),
            incoming: edges.incoming(stage).map(skips_along).collect(),
            outgoing: edges.outgoing(stage).map(skips_along).collect(),
        }
    }
}

/// Skip values or their gradients, by micro-batch and name.
pub(crate) type SkipStore = HashMap<(usize, String), Packet>;

/// Takes apart the packets that came along the edges of a stage, in the order of the edges.
///
/// Returns what the edge of the chain, the one at `chain_edge`, brought for the chain itself.
/// Puts what this edge and the others brought for skip connections into `skips`.
pub(crate) fn unpack(
    micro_batch: usize,
    packets: Vec<Packet>,
    routes: Vec<Vec<String>>,
    chain_edge: usize,
    skips: &mut SkipStore,
) -> Option<Packet> {
    let mut chain_packet = None;
    for (edge, (names, packet)) in routes.into_iter().zip(packets).enumerate() {
        let mut sections = packet.split().into_iter();
        if edge == chain_edge {
            chain_packet = sections.next();
        }
        skips.extend(names.into_iter().map(|name| (micro_batch, name)).zip(sections));
    }
    chain_packet
}

/// Puts together the packets that go along the edges of a stage: the reverse of [`unpack`].
///
/// `chain_packet` goes along the edge of the chain, and what `routes` names is taken out of
/// `skips`.
pub(crate) fn pack(
    micro_batch: usize,
    mut chain_packet: Option<Packet>,
    routes: Vec<Vec<String>>,
    chain_edge: usize,
    skips: &mut SkipStore,
) -> Vec<Packet> {
    let mut pack = |(edge, names): (usize, Vec<String>)| {
        let for_chain = if edge == chain_edge { chain_packet.take() } else { None };
        let skip_values = names.into_iter().filter_map(|name| skips.remove(&(micro_batch, name)));
        Packet::join(for_chain.into_iter().chain(skip_values).collect())
    };
    routes.into_iter().enumerate().map(&mut pack).collect()
}
