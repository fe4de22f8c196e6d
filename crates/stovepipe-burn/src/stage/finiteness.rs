//! The search for the first number that isn't finite, if it was asked for.

use crate::error::stage::StageError;
use crate::stage::burn_stage::BurnStage;
use crate::value::packet::Packet;
use crate::value::part::Part;

impl BurnStage {
    /// Refuses outputs or gradients of a layer that aren't finite. `what` names them.
    pub(super) fn check_finite<'a>(
        &self,
        layer: usize,
        what: &str,
        parts: impl IntoIterator<Item = &'a Box<dyn Part>>,
    ) -> Result<(), StageError> {
        if self.settings.finds_non_finite && parts.into_iter().any(|part| !part.is_finite()) {
            return Err(self.not_finite(layer, what.to_owned()));
        }
        Ok(())
    }

    /// Does the same with values on skip connections, by name.
    pub(super) fn check_finite_skips<'a>(
        &self,
        layer: usize,
        what: &str,
        packets: impl IntoIterator<Item = (&'a String, &'a Packet)>,
    ) -> Result<(), StageError> {
        packets.into_iter().try_for_each(|(name, packet)| {
            let parts = packet.parts().iter().flatten();
            self.check_finite(layer, &format!("{what} `{name}`"), parts)
        })
    }

    /// Refuses gradients of a layer's parameters that aren't finite.
    pub(super) fn check_finite_parameters(&mut self, layer: usize) -> Result<(), StageError> {
        if !self.settings.finds_non_finite {
            return Ok(());
        }
        match self.layers[layer].gradient_that_is_not_finite() {
            Some(path) => Err(self.not_finite(layer, format!("the gradient of `{path}`"))),
            None => Ok(()),
        }
    }

    /// Refuses a gradient of the loss that isn't finite.
    pub(super) fn check_finite_loss(
        &self,
        gradients: &[Option<Box<dyn Part>>],
    ) -> Result<(), StageError> {
        let mut parts = gradients.iter().flatten();
        if self.settings.finds_non_finite && parts.any(|part| !part.is_finite()) {
            return Err(StageError::LossNotFinite { what: "the gradient of the loss" });
        }
        Ok(())
    }

    fn not_finite(&self, layer: usize, what: String) -> StageError {
        StageError::NotFinite { layer: self.layers[layer].name().to_owned(), what }
    }
}
