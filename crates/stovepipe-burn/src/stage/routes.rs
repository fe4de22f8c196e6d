//! Which skip connections travel along which edges of a stage, and how their values are packed there.

use std::collections::HashMap;

use stovepipe_partition::Partition;
use stovepipe_schedule::{Edge, Edges, Stage};

use crate::model::skips::Skip;
use crate::value::packet::Packet;

/// Which skips travel along the edges of a stage, in the edges' order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Routes {
    pub(crate) incoming: Vec<Vec<String>>,
    pub(crate) outgoing: Vec<Vec<String>>,
}

impl Routes {
    pub(crate) fn of(stage: Stage, edges: &Edges, skips: &[Skip], partition: &Partition) -> Self {
        let along = |edge: Edge| {
            let travels = |skip: &&Skip| {
                partition.part_of(skip.from) == edge.from.index()
                    && partition.part_of(skip.to) == edge.to.index()
            };
            skips.iter().filter(travels).map(|skip| skip.name.clone()).collect()
        };
        Self {
            incoming: edges.incoming(stage).map(along).collect(),
            outgoing: edges.outgoing(stage).map(along).collect(),
        }
    }
}

/// Values of one micro-batch or their gradients on skip connections, by micro-batch and name.
pub(crate) type SkipStore = HashMap<(usize, String), Packet>;

/// Takes apart what came along the edges: returns what the chain's edge, which stands at `chain`, brought
/// for the chain itself, and sorts in what it and the others brought for skips.
pub(crate) fn unpack(
    m: usize,
    packets: Vec<Packet>,
    routes: Vec<Vec<String>>,
    chain: usize,
    skips: &mut SkipStore,
) -> Option<Packet> {
    let mut own = None;
    for (edge, (names, packet)) in routes.into_iter().zip(packets).enumerate() {
        let mut sections = packet.split().into_iter();
        if edge == chain {
            own = sections.next();
        }
        skips.extend(names.into_iter().map(|name| (m, name)).zip(sections));
    }
    own
}

/// Puts together what goes along the edges, the other way round.
pub(crate) fn pack(
    m: usize,
    mut own: Option<Packet>,
    routes: Vec<Vec<String>>,
    chain: usize,
    skips: &mut SkipStore,
) -> Vec<Packet> {
    let mut pack = |(edge, names): (usize, Vec<String>)| {
        let own = if edge == chain { own.take() } else { None };
        let skipped = names.into_iter().filter_map(|name| skips.remove(&(m, name)));
        Packet::join(own.into_iter().chain(skipped).collect())
    };
    routes.into_iter().enumerate().map(&mut pack).collect()
}
