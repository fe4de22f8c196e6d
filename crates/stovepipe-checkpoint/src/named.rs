//! The entry of a policy in the list: name, form of its argument, summary, and a function that
//! makes it. Each policy's file holds its own entry; the list of them stands in the folder's file.

use crate::activations::LayerActivations;
use crate::error::PolicyError;
use crate::policy::CheckpointPolicy;

/// A checkpoint policy that is asked for by its name.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NamedPolicy {
    /// The name, as [`policy_named`](crate::policy_named) takes it.
    pub name: &'static str,
    /// The name with its argument's form, like `every-layers=N`; the name alone if there is none.
    pub form: &'static str,
    /// An example of it for a model of eight layers, like `every-layers=4`.
    pub example: &'static str,
    /// One line of help.
    pub summary: &'static str,
    /// Whether a tuner tries it when nobody says which. One that takes an argument can't be.
    pub tuned: bool,
    pub(crate) make: Make,
}

/// Makes a policy from its argument, empty if it takes none, and from facts.
type Make = fn(&str, &PolicyFacts) -> Result<Box<dyn CheckpointPolicy>, PolicyError>;

/// Facts about the model that a policy may need besides its argument. None of them has to be known.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct PolicyFacts {
    /// The price of keeping and recomputing each layer of the model, which `budget` needs.
    pub layers: Option<Vec<LayerActivations>>,
}

impl PolicyFacts {
    /// With the price of keeping and recomputing each layer of the model.
    #[must_use]
    pub fn with_layers(self, layers: impl Into<Vec<LayerActivations>>) -> Self {
        Self { layers: Some(layers.into()) }
    }
}

impl NamedPolicy {
    /// The policy with this argument.
    ///
    /// # Errors
    ///
    /// [`PolicyError::Argument`] if the argument isn't of the form, or there is one too many or too
    /// few; [`PolicyError::MissingFact`] if a fact is needed that isn't known.
    pub fn make(
        &self,
        argument: Option<&str>,
        facts: &PolicyFacts,
    ) -> Result<Box<dyn CheckpointPolicy>, PolicyError> {
        if self.takes_argument() != argument.is_some() {
            return Err(self.refuse(argument));
        }
        (self.make)(argument.unwrap_or_default(), facts)
    }

    /// Whether an argument stands behind the name.
    #[must_use]
    pub fn takes_argument(&self) -> bool {
        self.form != self.name
    }

    /// The error for an argument that can't be used, or that is missing.
    pub(crate) fn refuse<'a>(&self, argument: impl Into<Option<&'a str>>) -> PolicyError {
        let found = match argument.into() {
            Some(argument) => format!("{}={argument}", self.name),
            None => self.name.to_owned(),
        };
        PolicyError::Argument { found: found.chars().take(40).collect(), example: self.example }
    }
}
