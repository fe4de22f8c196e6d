//! The check that each parameter has one path, and each path one parameter.

use std::collections::HashMap;

use burn::module::ParamId;

use crate::error::build::BuildError;
use crate::model::layer_spec::{LayerFacts, LayerSpec};

/// Returns the path in the model of what stands at `path` in a layer.
pub(crate) fn path_in_model(layer: &str, path: &str) -> String {
    // A layer that visits a parameter itself gives it no path of its own.
    if path.is_empty() { layer.to_owned() } else { format!("{layer}.{path}") }
}

/// Refuses parameters that can't be told apart by their paths, or that are one in two places
/// and aren't tied.
pub(crate) fn check_paths(
    layers: &[LayerSpec],
    layer_facts: &[LayerFacts],
    ties: &[Vec<String>],
) -> Result<(), BuildError> {
    check_each_has_its_own(layers, layer_facts)?;
    let mut known: HashMap<ParamId, String> = HashMap::new();
    for (layer, facts) in layers.iter().zip(layer_facts) {
        for float in &facts.floats {
            let second = path_in_model(&layer.name, &float.path);
            let Some(first) = known.insert(float.id, second.clone()) else { continue };
            let is_tied = |tie: &Vec<String>| tie.contains(&first) && tie.contains(&second);
            if !ties.iter().any(is_tied) {
                return Err(BuildError::SharedParameter { first, second });
            }
        }
    }
    Ok(())
}

/// Refuses two parameters with one path.
///
/// Names of layers and fields are joined with dots, and may hold dots themselves. So the same
/// path can come about in several ways.
fn check_each_has_its_own(
    layers: &[LayerSpec],
    layer_facts: &[LayerFacts],
) -> Result<(), BuildError> {
    let mut known: HashMap<String, (&str, &str)> = HashMap::new();
    for (layer, facts) in layers.iter().zip(layer_facts) {
        for path in &facts.paths {
            let whole = path_in_model(&layer.name, path);
            let own = (&*layer.name, &**path);
            let Some(first) = known.insert(whole.clone(), own) else { continue };
            let name = |(layer, path): (&str, &str)| format!("`{path}` of layer `{layer}`");
            return Err(BuildError::PathTwice {
                path: whole,
                first: name(first),
                second: name(own),
            });
        }
    }
    Ok(())
}
