//! A backend from elsewhere, which needs `stovepipe-burn` alone.

use stovepipe_burn::burn::tensor::Device;
use stovepipe_burn::{Backend, BackendError, RANK_STACK, RankThread};

/// The processor, each rank on a thread with a stack and a name of its own.
pub struct DeepStacks {
    /// How many ranks can have one.
    pub ranks: usize,
}

impl Backend for DeepStacks {
    fn name(&self) -> &str {
        "deep-stacks"
    }

    fn devices(&self) -> Result<Vec<Device>, BackendError> {
        if self.ranks == 0 {
            return Err(BackendError::NoDevice {
                backend: self.name().to_owned(),
                wanted: "rank".to_owned(),
                found: Vec::new(),
                advice: "Ask for at least one".to_owned(),
            });
        }
        Ok(vec![Device::flex(); self.ranks])
    }

    fn device_name(&self, _: &Device) -> String {
        "processor".to_owned()
    }

    fn rank_thread(&self, rank: usize) -> Result<Box<dyn RankThread>, BackendError> {
        Ok(Box::new(DeepStack { rank: rank % self.ranks.max(1) }))
    }

    fn is_deterministic(&self) -> bool {
        true
    }
}

struct DeepStack {
    rank: usize,
}

impl RankThread for DeepStack {
    fn run(self: Box<Self>, worker: Box<dyn FnOnce() + Send>) {
        let thread = std::thread::Builder::new().name(format!("deep-{}", self.rank));
        let worker = thread.stack_size(2 * RANK_STACK).spawn(worker).expect("a thread");
        worker.join().expect("the worker reports its own panics");
    }
}
