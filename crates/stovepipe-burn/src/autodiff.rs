//! One layer at work: its tape, its gradients, its optimizer, with and without its types.

pub(crate) mod backward;
pub(crate) mod ends;
pub(crate) mod erased_layer;
pub(crate) mod layer_run;
pub(crate) mod loss_tape;
pub(crate) mod tape;
pub(crate) mod trained_layer;
