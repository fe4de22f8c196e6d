//! The settings that the stages of a pipeline have in common.

use std::collections::HashSet;
use std::sync::Arc;

use crate::backend::Backend;
use crate::loss::erasure::ErasedLoss;
use crate::model::ties::Tie;
use crate::parameters::averaging::Clipping;

/// The settings that all stages of a pipeline share.
#[derive(Clone)]
pub(crate) struct StageSettings {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) atomic_updates: bool,
    pub(crate) seed: u64,
    pub(crate) clipping: Option<Clipping>,
    /// Says whether a step whose gradients aren't finite overflows, instead of failing.
    pub(crate) forgets_overflows: bool,
    /// Says whether every value is looked at, to name the first one that isn't finite.
    pub(crate) finds_non_finite: bool,
    pub(crate) metrics: Arc<[Box<ErasedLoss>]>,
    pub(crate) ties: Arc<[Tie]>,
}

impl StageSettings {
    /// Returns the paths of all uses of tied parameters except the first of each.
    pub(crate) fn tied_copies(&self) -> HashSet<String> {
        let copies = self.ties.iter().flat_map(|tie| tie.iter().skip(1));
        copies.map(|tied| tied.path.clone()).collect()
    }
}
