//! The costs that the partitioner balances, one for each layer.

use stovepipe_partition::Costs;

use crate::error::build::BuildError;
use crate::model::layer_spec::{LayerFacts, LayerSpec};

/// The costs that the partitioner balances.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub enum LayerCosts {
    /// The number of parameters, which is proportional to the time of layers that are matrix
    /// products.
    #[default]
    Parameters,
    /// The same cost for every layer.
    Uniform,
    /// The floating-point operations that each layer [states](crate::Layer::flops). Layers
    /// without parameters need not state them: they cost nothing then.
    Flops,
    /// One cost for each layer, in any unit.
    Given(Vec<f64>),
}

impl From<Costs> for LayerCosts {
    /// Takes costs from elsewhere, such as the [times](stovepipe_tune::Profile::times) of a
    /// profile.
    fn from(costs: Costs) -> Self {
        Self::Given(costs.as_slice().to_vec())
    }
}

impl LayerCosts {
    /// Returns the costs of these layers.
    pub(crate) fn of_layers(
        &self,
        layers: &[LayerSpec],
        layer_facts: &[LayerFacts],
    ) -> Result<Costs, BuildError> {
        let count = layer_facts.len();
        Ok(match self {
            Self::Parameters => Costs::new(
                layer_facts.iter().map(|facts| facts.parameters as f64).collect::<Vec<_>>(),
            )?,
            Self::Uniform => Costs::uniform(count)?,
            Self::Flops => {
                let flops = layers.iter().zip(layer_facts).map(|(layer, facts)| {
                    let free = (facts.parameters == 0).then_some(0.0);
                    facts
                        .flops
                        .or(free)
                        .ok_or_else(|| BuildError::NoFlops { layer: layer.name.to_string() })
                });
                Costs::new(flops.collect::<Result<Vec<_>, _>>()?)?
            }
            Self::Given(costs) if costs.len() != count => {
                return Err(BuildError::Costs { found: costs.len(), layers: count });
            }
            Self::Given(costs) => Costs::new(costs.clone())?,
        })
    }
}
