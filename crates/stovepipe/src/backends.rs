//! Backends by name, for programs that choose at run time among those that were compiled in.

use stovepipe_burn::{Backend, Mixed};

/// A backend that a program chooses by its name.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NamedBackend {
    /// The name, as [`backend_named`] takes it.
    pub name: &'static str,
    /// One line of help.
    pub summary: &'static str,
    make: fn(usize) -> Box<dyn Backend>,
}

impl NamedBackend {
    /// Makes the backend. `threads` is the number of threads with which each rank computes on
    /// the processor.
    #[must_use]
    pub fn make(&self, threads: usize) -> Box<dyn Backend> {
        (self.make)(threads)
    }
}

/// Returns all backends that were compiled in.
#[must_use]
pub fn backends() -> &'static [NamedBackend] {
    &[
        #[cfg(feature = "flex")]
        NamedBackend {
            name: "flex",
            summary: "Computes on the processor, in Rust alone.",
            make: |threads| Box::new(stovepipe_flex::Flex::new().threads(threads)),
        },
        #[cfg(feature = "wgpu")]
        NamedBackend {
            name: "wgpu",
            summary: "Computes on graphics processors through Vulkan, Metal or DirectX.",
            make: |_| Box::new(stovepipe_wgpu::Wgpu::new()),
        },
        #[cfg(feature = "cuda")]
        NamedBackend {
            name: "cuda",
            summary: "Computes on NVIDIA's graphics processors.",
            make: |_| Box::new(stovepipe_cuda::Cuda::new()),
        },
        #[cfg(feature = "tch")]
        NamedBackend {
            name: "tch",
            summary: "Computes on the processor with LibTorch.",
            make: |threads| Box::new(stovepipe_tch::Tch::new().threads(threads)),
        },
        #[cfg(feature = "tch")]
        NamedBackend {
            name: "tch-cuda",
            summary: "Computes on NVIDIA's graphics processors with LibTorch.",
            make: |threads| Box::new(stovepipe_tch::Tch::cuda().threads(threads)),
        },
        #[cfg(feature = "tch")]
        NamedBackend {
            name: "tch-mps",
            summary: "Computes on Apple's graphics processors with LibTorch.",
            make: |threads| Box::new(stovepipe_tch::Tch::mps().threads(threads)),
        },
    ]
}

/// The error for a name that no backend has, or one that wasn't compiled in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no backend `{name}` in this program, only {known}: build it with the feature of the \
     backend, one of flex, wgpu, cuda and tch"
)]
pub struct UnknownBackend {
    name: String,
    known: String,
}

/// Returns the backend of this name, or a [`Mixed`] one of several names with commas between
/// them.
///
/// Of several names, each is for the next rank. Ranks with the same name have that backend's
/// devices in turn.
///
/// `threads` is the number of threads with which each rank computes on the processor.
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
/// [`UnknownBackend`] for a name that isn't one of [`backends`].
pub fn backend_named(names: &str, threads: usize) -> Result<Box<dyn Backend>, UnknownBackend> {
    let (mut mixed, mut earlier) = (Mixed::new(), Vec::new());
    for name in names.split(',') {
        let named = backends().iter().find(|named| named.name == name);
        let named = named.ok_or_else(|| UnknownBackend {
            name: name.chars().take(40).collect(),
            known: backends().iter().map(|named| named.name).collect::<Vec<_>>().join(", "),
        })?;
        let backend = named.make(threads);
        if name == names {
            return Ok(backend);
        }
        let number = earlier.iter().filter(|other| **other == name).count();
        mixed = mixed.rank_on(number, backend);
        earlier.push(name);
    }
    Ok(Box::new(mixed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_found_by_their_names() {
        for named in backends() {
            assert_eq!(backend_named(named.name, 1).expect("it is listed").name(), named.name);
            assert!(named.summary.ends_with('.'), "{}", named.name);
        }
        let error = backend_named("abacus", 1).err().expect("unknown").to_string();
        assert!(error.contains("`abacus`") && error.contains("feature"), "{error}");
    }
}
