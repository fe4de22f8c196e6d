//! Backends by name, for programs that choose at run time among those that were compiled in.

use stovepipe_burn::{Backend, Mixed};

/// The names of the backends that were compiled in, as [`backend_named`] takes them.
pub const BACKENDS: &[&str] = &[
    #[cfg(feature = "flex")]
    "flex",
    #[cfg(feature = "wgpu")]
    "wgpu",
    #[cfg(feature = "cuda")]
    "cuda",
    #[cfg(feature = "tch")]
    "tch",
    #[cfg(feature = "tch")]
    "tch-cuda",
    #[cfg(feature = "tch")]
    "tch-mps",
];

/// There is no backend of this name, or it wasn't compiled in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no backend `{name}` in this program, only {known}: build it with the feature of the \
     backend, one of flex, wgpu, cuda and tch"
)]
pub struct UnknownBackend {
    name: String,
    known: String,
}

/// The backend of this name; of several names with commas between them, each rank has one in turn,
/// and of those of one name each the next device. `threads` is how many each rank computes with on
/// the processor.
///
/// ```
/// use stovepipe::{Backend, backend_named};
///
/// assert_eq!(backend_named("flex", 2)?.name(), "flex");
/// assert_eq!(backend_named("flex,flex", 1)?.name(), "flex,flex");
/// assert!(backend_named("abacus", 1).is_err());
/// # Ok::<(), stovepipe::UnknownBackend>(())
/// ```
///
/// # Errors
///
/// [`UnknownBackend`], which lists [`BACKENDS`].
pub fn backend_named(names: &str, threads: usize) -> Result<Box<dyn Backend>, UnknownBackend> {
    let (mut mixed, mut known) = (Mixed::new(), Vec::new());
    for name in names.split(',') {
        let backend = one(name, threads).ok_or_else(|| UnknownBackend {
            name: name.chars().take(40).collect(),
            known: BACKENDS.join(", "),
        })?;
        if name == names {
            return Ok(backend);
        }
        mixed = mixed.rank_on(known.iter().filter(|other| **other == name).count(), backend);
        known.push(name);
    }
    Ok(Box::new(mixed))
}

#[allow(unused_variables, reason = "not every backend has threads")]
fn one(name: &str, threads: usize) -> Option<Box<dyn Backend>> {
    Some(match name {
        #[cfg(feature = "flex")]
        "flex" => Box::new(stovepipe_flex::Flex::new().threads(threads)),
        #[cfg(feature = "wgpu")]
        "wgpu" => Box::new(stovepipe_wgpu::Wgpu::new()),
        #[cfg(feature = "cuda")]
        "cuda" => Box::new(stovepipe_cuda::Cuda::new()),
        #[cfg(feature = "tch")]
        "tch" => Box::new(stovepipe_tch::Tch::new().threads(threads)),
        #[cfg(feature = "tch")]
        "tch-cuda" => Box::new(stovepipe_tch::Tch::cuda().threads(threads)),
        #[cfg(feature = "tch")]
        "tch-mps" => Box::new(stovepipe_tch::Tch::mps().threads(threads)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_found_by_their_names() {
        for name in BACKENDS {
            assert_eq!(backend_named(name, 1).expect("it is listed").name(), *name);
        }
        let error = backend_named("abacus", 1).err().expect("unknown").to_string();
        assert!(error.contains("`abacus`") && error.contains("feature"), "{error}");
    }
}
