//! Gradients of tied parameters: stages that own uses of one give each other theirs, from device to
//! device, and each adds all in the order of the layers. No other stage sees them.

use std::collections::{BTreeMap, BTreeSet};

use stovepipe_partition::Partition;
use stovepipe_schedule::Stage;

use crate::autodiff::erased_layer::ErasedLayer;
use crate::model::ties::Tie;
use crate::value::packet::Packet;
use crate::value::part::Part;

/// A use of a tied parameter, as one stage sees it.
#[derive(Debug, PartialEq, Eq)]
enum Use {
    /// The stage has it: the number of the layer in the stage, and the path in the model.
    Own { layer: usize, path: String },
    /// Another stage has it.
    Other(Stage),
}

/// The tied parameters of which a stage has uses: all uses of each, in the order of the layers.
#[derive(Debug, Default)]
pub(crate) struct TiedUses(Vec<Vec<Use>>);

impl TiedUses {
    /// Finds those of a stage.
    pub(crate) fn of(stage: Stage, ties: &[Tie], partition: &Partition) -> Self {
        let range = partition.range(stage.index());
        let all = ties.iter().map(|tie| {
            let uses = tie.iter().map(|tied| match tied.layer.checked_sub(range.start) {
                Some(layer) if range.contains(&tied.layer) => {
                    Use::Own { layer, path: tied.path.clone() }
                }
                _ => Use::Other(Stage::new(partition.part_of(tied.layer))),
            });
            uses.collect::<Vec<_>>()
        });
        let has_own = |uses: &Vec<Use>| uses.iter().any(|one| matches!(one, Use::Own { .. }));
        Self(all.filter(has_own).collect())
    }

    /// Returns the gradients of own uses that each other stage needs. `gradient` finds that of a
    /// path in a layer of the stage.
    pub(crate) fn share(
        &self,
        gradient: impl Fn(usize, &str) -> Option<Box<dyn Part>>,
    ) -> Vec<(Stage, Packet)> {
        let others = self.0.iter().flatten().filter_map(|one| match one {
            Use::Own { .. } => None,
            Use::Other(stage) => Some(*stage),
        });
        let others: BTreeSet<Stage> = others.collect();
        let of = |other: Stage| {
            let common = self.0.iter().filter(|uses| uses.contains(&Use::Other(other)));
            let gradients = common.flatten().filter_map(|one| match one {
                Use::Own { layer, path } => Some(gradient(*layer, path)),
                Use::Other(_) => None,
            });
            (other, Packet::gradients(gradients.collect()))
        };
        others.into_iter().map(of).collect()
    }

    /// Gives each own use the sum of the gradients of all uses. A parameter has none where no use
    /// has a gradient.
    pub(super) fn take_shared(
        &self,
        layers: &mut [Box<dyn ErasedLayer>],
        given: Vec<(Stage, Packet)>,
    ) {
        let given = given.into_iter();
        let mut given: BTreeMap<Stage, _> =
            given.map(|(stage, packet)| (stage, packet.into_gradients().into_iter())).collect();
        for uses in &self.0 {
            let gradients = uses.iter().filter_map(|one| match one {
                Use::Own { layer, path } => layers[*layer].gradient(path),
                Use::Other(stage) => given.get_mut(stage)?.next()?,
            });
            let sum = gradients.reduce(|sum: Box<dyn Part>, more| {
                sum.add(&*more).expect("uses of one parameter have one shape")
            });
            let Some(sum) = sum else { continue };
            for one in uses {
                if let Use::Own { layer, path } = one {
                    layers[*layer].set_gradient(path, sum.clone_box());
                }
            }
        }
    }
}
