//! The entry of a partitioner in the list: name, form of its argument, summary, and a function that
//! makes it. Each partitioner's file holds its own entry; the list of them stands in the folder's
//! file.

use std::ops::Range;

use crate::error::PartitionError;
use crate::memory::Memory;
use crate::partitioner::Partitioner;

/// A partitioner that is asked for by its name.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NamedPartitioner {
    /// The name, as [`partitioner_named`](crate::partitioner_named) takes it.
    pub name: &'static str,
    /// The name with its argument's form, like `explicit=N,…`; the name alone if there is none.
    pub form: &'static str,
    /// An example of it for six layers in two parts, like `explicit=4,2`.
    pub example: &'static str,
    /// One line of help.
    pub summary: &'static str,
    /// Whether a tuner cuts with it. One that takes an argument, or heeds no facts, can't be.
    pub tuned: bool,
    pub(crate) make: Make,
}

/// Makes a partitioner from its argument, empty if it takes none, and from facts.
type Make = fn(&str, &PartitionerFacts) -> Result<Box<dyn Partitioner>, PartitionError>;

/// Facts about ranks and layers that a partitioner may heed. None of them has to be known.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct PartitionerFacts {
    /// The relative speed of each rank.
    pub speeds: Option<Vec<f64>>,
    /// The costs of cutting before each layer except the first.
    pub cut_costs: Option<Vec<f64>>,
    /// The bytes that layers need and ranks have.
    pub memory: Option<Memory>,
    /// The rank of each part.
    pub placement: Option<Vec<usize>>,
    /// Layers, each with the part that it must be in.
    pub pins: Vec<(usize, usize)>,
    /// Layers that stay together.
    pub groups: Vec<Range<usize>>,
}

impl PartitionerFacts {
    /// With the relative speed of each rank.
    #[must_use]
    pub fn with_speeds(self, speeds: impl Into<Vec<f64>>) -> Self {
        Self { speeds: Some(speeds.into()), ..self }
    }

    /// With the costs of cutting before each layer except the first.
    #[must_use]
    pub fn with_cut_costs(self, costs: impl Into<Vec<f64>>) -> Self {
        Self { cut_costs: Some(costs.into()), ..self }
    }

    /// With the bytes that layers need and ranks have.
    #[must_use]
    pub fn with_memory(self, memory: Memory) -> Self {
        Self { memory: Some(memory), ..self }
    }

    /// With the rank of each part.
    #[must_use]
    pub fn with_placement(self, ranks: impl Into<Vec<usize>>) -> Self {
        Self { placement: Some(ranks.into()), ..self }
    }

    /// With a layer that must be in a part.
    #[must_use]
    pub fn with_pin(mut self, layer: usize, part: usize) -> Self {
        self.pins.push((layer, part));
        self
    }

    /// With layers that stay together.
    #[must_use]
    pub fn with_group(mut self, layers: Range<usize>) -> Self {
        self.groups.push(layers);
        self
    }
}

impl NamedPartitioner {
    /// The partitioner with this argument.
    ///
    /// # Errors
    ///
    /// [`PartitionError::Argument`] if the argument isn't of the form, or there is one too many or
    /// too few.
    pub fn make(
        &self,
        argument: Option<&str>,
        facts: &PartitionerFacts,
    ) -> Result<Box<dyn Partitioner>, PartitionError> {
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
    pub(crate) fn refuse<'a>(&self, argument: impl Into<Option<&'a str>>) -> PartitionError {
        let found = match argument.into() {
            Some(argument) => format!("{}={argument}", self.name),
            None => self.name.to_owned(),
        };
        PartitionError::Argument { found: found.chars().take(40).collect(), example: self.example }
    }
}
