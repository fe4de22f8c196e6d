//! The rounds in which ranks gather in a step, in their order.

/// Ranks of several processes say what they are about to do.
pub(crate) const BEGUN: u32 = 0;
/// Gradients are complete; carries the stages' reports.
pub(crate) const FINISHED: u32 = 1;
/// Every stage is ready to update.
pub(crate) const PREPARED: u32 = 2;
/// Every stage has updated, or says why not.
pub(crate) const UPDATED: u32 = 3;
