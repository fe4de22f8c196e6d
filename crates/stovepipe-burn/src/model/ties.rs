//! Tied parameters: one parameter that several layers use, such as the embedding of a language
//! model that is also its output layer.
//!
//! Each use has a copy of its own, with its own leaf and accumulator, on the rank of its layer.
//! At the end of a step the gradients of all uses are added in layer order, on every rank that has
//! one. Each copy is updated with the sum: so copies stay equal to the last bit, on whatever
//! ranks the layers are.

use crate::error::build::BuildError;
use crate::model::layer_spec::{LayerFacts, LayerSpec};
use crate::model::paths::path_in_model;
use crate::parameters::find::FloatParameter;

/// One use of a tied parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TiedUse {
    /// The number of the layer that uses it.
    pub(crate) layer: usize,
    /// The parameter's path in the model.
    pub(crate) path: String,
}

/// The uses of one parameter in the order of their layers. The first one names it.
pub(crate) type Tie = Vec<TiedUse>;

/// Finds the layers of tied paths. Refuses unknown paths, paths that are tied twice and shapes
/// that differ.
pub(crate) fn ties_of<'a>(
    paths: &[Vec<String>],
    layers: &[LayerSpec],
    layer_facts: &'a [LayerFacts],
) -> Result<Vec<Tie>, BuildError> {
    let mut known: Vec<&String> = Vec::new();
    let mut ties = Vec::new();
    for group in paths {
        let refuse =
            |path: &str, problem: String| Err(BuildError::Tie { path: path.to_owned(), problem });
        let mut uses: Vec<(TiedUse, &FloatParameter)> = Vec::new();
        for path in group {
            if known.contains(&path) {
                return refuse(path, "it is tied twice".to_owned());
            }
            known.push(path);
            let use_in = |(layer, facts): (usize, &'a LayerFacts)| {
                let name = &layers[layer].name;
                let is_it = |float: &&FloatParameter| path_in_model(name, &float.path) == *path;
                Some((layer, facts.floats.iter().find(is_it)?))
            };
            let Some((layer, found)) = layer_facts.iter().enumerate().find_map(use_in) else {
                return refuse(path, "the model has no such parameter".to_owned());
            };
            if let Some((TiedUse { path: first, .. }, expected)) = uses.first() {
                if expected.shape != found.shape {
                    let (shape, other) = (&found.shape, &expected.shape);
                    return refuse(
                        path,
                        format!("its shape is {shape:?}, that of {first} {other:?}"),
                    );
                }
                if expected.is_trainable != found.is_trainable {
                    let which = if found.is_trainable { "trains" } else { "is frozen" };
                    return refuse(path, format!("it {which}, unlike {first}: freeze all or none"));
                }
            }
            uses.push((TiedUse { layer, path: path.clone() }, found));
        }
        let mut uses: Tie = uses.into_iter().map(|(tied, _)| tied).collect();
        uses.sort_by_key(|tied| tied.layer);
        ties.push(uses);
    }
    Ok(ties)
}
