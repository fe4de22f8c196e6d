//! Skip connections: which layer stashes a value for which later layer, and the edges that they
//! need once the layers are cut into stages.

use std::collections::BTreeMap;

use stovepipe_partition::Partition;
use stovepipe_schedule::{Edges, PlanError, Stage};

use crate::autodiff::erased_layer::SkipNames;
use crate::error::build::BuildError;
use crate::model::layer_spec::{LayerFacts, LayerSpec};

/// A skip connection: a value that one layer stashes and a later one pops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Skip {
    /// The name that the layers use.
    pub(crate) called: String,
    /// The name in the whole model. It differs from `called` where an earlier skip was called
    /// the same.
    pub(crate) name: String,
    /// The number of the layer that stashes the value.
    pub(crate) from: usize,
    /// The number of the layer that pops it.
    pub(crate) to: usize,
}

/// Returns the names in the model of the skip values of a layer.
///
/// `first_trained` is the number of the first layer with something to train.
pub(crate) fn names_of(skips: &[Skip], layer: usize, first_trained: usize) -> SkipNames {
    let named = |end_of: fn(&Skip) -> usize| {
        let own = skips.iter().filter(|skip| end_of(skip) == layer);
        own.map(|skip| (skip.called.clone(), skip.name.clone())).collect()
    };
    let constants = skips.iter().filter(|skip| skip.to == layer && skip.from < first_trained);
    SkipNames {
        popped: named(|skip| skip.to),
        stashed: named(|skip| skip.from),
        constants: constants.map(|skip| skip.name.clone()).collect(),
    }
}

/// Finds the skips of a model. Refuses one in which a stashed value isn't popped exactly once,
/// by a later layer.
pub(crate) fn skips_of(
    layers: &[LayerSpec],
    layer_facts: &[LayerFacts],
) -> Result<Vec<Skip>, BuildError> {
    // The layers whose stashed values haven't been popped yet, by name.
    let mut open: BTreeMap<&str, usize> = BTreeMap::new();
    // The number of times that each name has been stashed.
    let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
    let mut skips: Vec<Skip> = Vec::new();
    for (index, (layer, facts)) in layers.iter().zip(layer_facts).enumerate() {
        let refuse = |name: &str, problem: &'static str| {
            let (skip, layer) = (name.to_owned(), layer.name.to_string());
            Err(BuildError::Skip { skip, layer, problem })
        };
        for name in &facts.pops {
            match open.remove(name.as_str()) {
                Some(from) => {
                    let (called, to) = (name.clone(), index);
                    let name = match uses.get(name.as_str()) {
                        Some(1) | None => called.clone(),
                        Some(use_number) => format!("{called}#{use_number}"),
                    };
                    skips.push(Skip { called, name, from, to });
                }
                None if skips.iter().any(|skip| skip.called == *name) => {
                    return refuse(name, "pops it, but a layer before has popped it already");
                }
                None => return refuse(name, "pops it, but no layer before stashes it"),
            }
        }
        for name in &facts.stashes {
            if open.insert(name, index).is_some() {
                return refuse(
                    name,
                    "stashes it, but that name is stashed already and not popped yet",
                );
            }
            *uses.entry(name).or_default() += 1;
        }
    }
    match open.into_iter().next() {
        Some((name, index)) => Err(BuildError::Skip {
            skip: name.to_owned(),
            layer: layers[index].name.to_string(),
            problem: "stashes it, but no later layer pops it",
        }),
        None => Ok(skips),
    }
}

/// Returns the edges: the chain of stages, and one for each pair of other stages with a skip.
pub(crate) fn edges_of(skips: &[Skip], partition: &Partition) -> Result<Edges, PlanError> {
    skips.iter().try_fold(Edges::chain(partition.parts()), |edges, skip| {
        let (from, to) = (partition.part_of(skip.from), partition.part_of(skip.to));
        if to > from + 1 { edges.with_skip(Stage::new(from), Stage::new(to)) } else { Ok(edges) }
    })
}
