//! The backend that others are compared with: Flex, on plain threads.

use burn::tensor::Device;

use crate::backend::Backend;
use crate::backend::error::BackendError;

/// Flex, with a plain thread for each rank.
pub(super) struct Reference;

impl Backend for Reference {
    fn name(&self) -> &str {
        "flex"
    }

    fn devices(&self) -> Result<Vec<Device>, BackendError> {
        Ok(vec![Device::flex()])
    }
}
