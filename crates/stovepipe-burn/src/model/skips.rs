//! Skip connections: which layer stashes what for which later layer, and which edges they need once the
//! layers are cut into stages.

use std::collections::BTreeMap;

use stovepipe_partition::Partition;
use stovepipe_schedule::{Edges, PlanError, Stage};

use crate::error::BuildError;
use crate::model::layer_spec::{LayerFacts, LayerSpec};

/// A value that leaves the chain at one layer and comes back at another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Skip {
    /// What the layers call it.
    pub(crate) called: String,
    /// What it is called in the whole model: a name that has been popped may be used again.
    pub(crate) name: String,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// What a layer's skips are called in the whole model, by what it calls them: those that it pops, and those
/// that it stashes.
pub(crate) fn names_of(skips: &[Skip], layer: usize) -> [BTreeMap<String, String>; 2] {
    let named = |at: fn(&Skip) -> usize| {
        let own = skips.iter().filter(|skip| at(skip) == layer);
        own.map(|skip| (skip.called.clone(), skip.name.clone())).collect()
    };
    [named(|skip| skip.to), named(|skip| skip.from)]
}

/// The skips of a model; every stashed value is popped once, later.
pub(crate) fn skips_of(
    layers: &[LayerSpec],
    layer_facts: &[LayerFacts],
) -> Result<Vec<Skip>, BuildError> {
    let mut open: BTreeMap<&str, usize> = BTreeMap::new();
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

/// The chain of stages, and an edge for every pair of other stages with a skip.
pub(crate) fn edges_of(skips: &[Skip], partition: &Partition) -> Result<Edges, PlanError> {
    skips.iter().try_fold(Edges::chain(partition.parts()), |edges, skip| {
        let (from, to) = (partition.part_of(skip.from), partition.part_of(skip.to));
        if to > from + 1 { edges.with_skip(Stage::new(from), Stage::new(to)) } else { Ok(edges) }
    })
}
