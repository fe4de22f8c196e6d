//! One tensor of any rank and kind behind an object-safe trait.
//!
//! Packets of parts are in `packet`, and the types that a layer sees are in `boundary`.

use std::any::Any;
use std::ops::Range;

use burn::tensor::kind::Basic;
use burn::tensor::{
    Bool, BoolStore, DType, Device, FloatDType, Gradients, Int, Tensor, TensorCreationOptions,
    TensorData,
};

use crate::value::dtype;

/// One tensor of a boundary value with its rank and kind erased.
pub(crate) trait Part: Any + Send + Sync {
    fn clone_box(&self) -> Box<dyn Part>;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
    fn as_any(&self) -> &dyn Any;
    /// Returns kind, rank and shape for messages, like `Tensor<3> [8, 64, 256]`.
    fn describe(&self) -> String;
    fn shape(&self) -> Vec<usize>;
    /// Says whether it is on this device; an absent value is on every device.
    fn is_on(&self, device: &Device) -> bool;
    /// Returns the bytes that its elements take on the device.
    fn bytes(&self) -> u64;
    /// Copies the values to memory of their own.
    fn duplicate(&self) -> Box<dyn Part>;
    /// Takes it off the tape, moves it to `device` if one is given, and makes it contiguous.
    ///
    /// Every value crosses a layer boundary in this way.
    fn detach_to(self: Box<Self>, device: Option<&Device>) -> Box<dyn Part>;
    /// Casts a float tensor to another type; others stay as they are.
    fn cast(self: Box<Self>, dtype: FloatDType) -> Box<dyn Part>;
    /// Casts a float tensor of 16 bits to 32 bits; others stay as they are.
    fn widen(self: Box<Self>) -> Box<dyn Part>;
    /// Turns autodiff on, without a gradient of its own.
    fn track(self: Box<Self>) -> Box<dyn Part>;
    /// Turns autodiff on; a float tensor becomes a leaf whose gradient is kept.
    fn leaf(self: Box<Self>) -> Box<dyn Part>;
    /// Puts operations that change nothing behind it, more than any layer computes on its
    /// parameters alone.
    ///
    /// Burn runs a backward by the number of operations from the leaves. With this an operation on
    /// parameters alone comes before those on the value, wherever the tape begins, so that sums of
    /// gradients have the same order.
    fn lift(self: Box<Self>) -> Box<dyn Part>;
    /// Makes it contiguous where it is, on the tape or off it.
    fn contiguous(self: Box<Self>) -> Box<dyn Part>;
    /// Says whether a gradient can flow into it.
    fn is_tracked(&self) -> bool;
    /// Returns `sum(self * gradient)` of shape `[1]`, whose backward continues from
    /// `gradient`.
    ///
    /// It is `None` for other than float tensors, or if the gradient has another kind or rank.
    fn seed(&self, gradient: &dyn Part) -> Option<Tensor<1>>;
    /// Says whether all its numbers are finite. Waits for the device.
    fn is_finite(&self) -> bool;
    /// Returns the sum with a float tensor of the same rank and shape, or `None` for anything else.
    fn add(&self, other: &dyn Part) -> Option<Box<dyn Part>>;
    /// Takes the leaf's gradient out, if the backward reached the leaf.
    fn take_gradient(&self, gradients: &mut Gradients) -> Option<Box<dyn Part>>;
    /// Returns a contiguous piece along the first axis.
    fn slice(&self, range: Range<usize>) -> Box<dyn Part>;
    /// Copies it to the host, or returns `None` for an absent value.
    fn into_host(self: Box<Self>) -> Option<HostPart>;
    /// Joins pieces of the same kind and rank along the first axis, or returns `None` if one
    /// differs.
    fn concat(&self, others: Vec<Box<dyn Part>>) -> Option<Box<dyn Part>>;
}

/// Clones the parts; clones share their memory.
pub(crate) fn copied(parts: &[Box<dyn Part>]) -> Vec<Box<dyn Part>> {
    parts.iter().map(|part| part.clone_box()).collect()
}

/// The operations of a [lift](Part::lift).
const LIFT: usize = 32;

/// Copies a tensor that is a view, so that its elements lie in the tensor's own order.
///
/// Sums over a view and over its copy differ in the last bits. With a copy at every boundary,
/// values don't depend on the place of the boundaries.
macro_rules! contiguous {
    ($tensor:expr) => {{
        let tensor = $tensor;
        let shape = tensor.shape();
        let whole: Self = tensor.reshape([-1]).reshape(shape);
        whole
    }};
}

/// Copies a tensor's values to the host now.
///
/// On CubeCL's devices `into_data` copies when the values are first looked at, and would show
/// changes that were made to the memory until then.
pub(crate) fn read<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> TensorData {
    let data = tensor.into_data();
    std::hint::black_box(data.as_bytes());
    data
}

/// Says whether two devices belong to one of Burn's backends and compute with the same types.
fn are_of_one_kind(from: &Device, to: &Device) -> bool {
    let backend = |device: &Device| std::mem::discriminant(device.as_dispatch());
    let (from, to) = (from.clone().inner(), to.clone().inner());
    backend(&from) == backend(&to) && from.settings() == to.settings()
}

/// Returns the options for floats, which keep their type on every device.
fn same_type(device: &Device, dtype: DType) -> TensorCreationOptions {
    (device, dtype).into()
}

/// Returns the options for whole numbers and truth values, which take the type that the device
/// computes with.
fn own_type(device: &Device, _: DType) -> TensorCreationOptions {
    device.into()
}

macro_rules! common {
    ($name:literal, $options:ident) => {
        fn clone_box(&self) -> Box<dyn Part> {
            Box::new(self.clone())
        }

        fn into_any(self: Box<Self>) -> Box<dyn Any> {
            self
        }

        fn as_any(&self) -> &dyn Any {
            self
        }

        fn describe(&self) -> String {
            format!(concat!("Tensor<{}", $name, "> {:?}"), D, self.dims())
        }

        fn shape(&self) -> Vec<usize> {
            self.dims().to_vec()
        }

        fn is_on(&self, device: &Device) -> bool {
            // Burn's devices compare as equal with autodiff and without.
            let own = self.device();
            own == *device && own.is_autodiff() == device.is_autodiff()
        }

        fn bytes(&self) -> u64 {
            (self.shape().num_elements() * self.dtype().size()) as u64
        }

        fn detach_to(self: Box<Self>, device: Option<&Device>) -> Box<dyn Part> {
            let tensor = self.inner();
            let elsewhere = device.filter(|device| tensor.device() != **device);
            match elsewhere {
                Some(device) if are_of_one_kind(&tensor.device(), device) => {
                    Box::new(contiguous!(tensor.to_device(device)))
                }
                Some(device) => {
                    let dtype = tensor.dtype();
                    Box::new(Self::from_data(read(tensor), $options(device, dtype)))
                }
                None => Box::new(contiguous!(tensor)),
            }
        }

        fn track(self: Box<Self>) -> Box<dyn Part> {
            Box::new(Tensor::from_inner(*self))
        }

        fn contiguous(self: Box<Self>) -> Box<dyn Part> {
            Box::new(contiguous!(*self))
        }

        fn slice(&self, range: Range<usize>) -> Box<dyn Part> {
            let piece = self.clone().narrow(0, range.start, range.len());
            Box::new(contiguous!(piece))
        }

        fn concat(&self, others: Vec<Box<dyn Part>>) -> Option<Box<dyn Part>> {
            let mut pieces = vec![self.clone()];
            let shape = self.shape();
            for other in others {
                let piece = *other.into_any().downcast::<Self>().ok()?;
                if piece.shape()[1..] != shape[1..] {
                    return None;
                }
                pieces.push(piece);
            }
            Some(Box::new(Tensor::cat(pieces, 0)))
        }
    };
}

impl<const D: usize> Part for Tensor<D> {
    common!("", same_type);

    fn into_host(self: Box<Self>) -> Option<HostPart> {
        Some(HostPart::float(read(*self)))
    }

    fn duplicate(&self) -> Box<dyn Part> {
        // The original still holds the memory, so that the product isn't written in place.
        Box::new(self.clone().mul_scalar(1))
    }

    fn cast(self: Box<Self>, dtype: FloatDType) -> Box<dyn Part> {
        Box::new(dtype::cast(*self, dtype))
    }

    fn widen(self: Box<Self>) -> Box<dyn Part> {
        Box::new(dtype::widen(*self))
    }

    fn leaf(self: Box<Self>) -> Box<dyn Part> {
        Box::new(Tensor::from_inner(*self).require_grad())
    }

    fn lift(self: Box<Self>) -> Box<dyn Part> {
        let length = self.dims()[0];
        let nothing = |tensor: Self| match D {
            0 => tensor,
            1 => tensor.reshape([1, length]).reshape::<D, _>(self.shape()),
            _ => tensor.swap_dims(0, D - 1).swap_dims(0, D - 1),
        };
        Box::new((0..LIFT / 2).fold(*self.clone(), |tensor, _| nothing(tensor)))
    }

    fn is_tracked(&self) -> bool {
        Tensor::is_tracked(self)
    }

    fn seed(&self, gradient: &dyn Part) -> Option<Tensor<1>> {
        let gradient = gradient.as_any().downcast_ref::<Self>()?;
        // What takes the value may have cast it.
        let gradient = Tensor::from_inner(dtype::cast(gradient.clone(), self.dtype()));
        // Seeds of several types are added to each other, and to the losses that layers add.
        Some(dtype::widen((self.clone() * gradient).sum()))
    }

    fn is_finite(&self) -> bool {
        dtype::widen(self.clone()).is_finite().all().into_scalar()
    }

    fn add(&self, other: &dyn Part) -> Option<Box<dyn Part>> {
        let other = other.as_any().downcast_ref::<Self>()?;
        Some(Box::new(self.clone() + other.clone()))
    }

    fn take_gradient(&self, gradients: &mut Gradients) -> Option<Box<dyn Part>> {
        let gradient = self.grad_remove(gradients)?;
        Some(Box::new(contiguous!(gradient)))
    }
}

macro_rules! untracked_part {
    ($kind:ty, $name:literal, $host:path, $duplicate:expr) => {
        impl<const D: usize> Part for Tensor<D, $kind> {
            common!($name, own_type);

            fn into_host(self: Box<Self>) -> Option<HostPart> {
                Some($host(read(*self)))
            }

            fn duplicate(&self) -> Box<dyn Part> {
                Box::new($duplicate(self.clone()))
            }

            fn cast(self: Box<Self>, _: FloatDType) -> Box<dyn Part> {
                self
            }

            fn widen(self: Box<Self>) -> Box<dyn Part> {
                self
            }

            fn leaf(self: Box<Self>) -> Box<dyn Part> {
                self.track()
            }

            fn lift(self: Box<Self>) -> Box<dyn Part> {
                self
            }

            fn is_tracked(&self) -> bool {
                false
            }

            fn seed(&self, _: &dyn Part) -> Option<Tensor<1>> {
                None
            }

            fn is_finite(&self) -> bool {
                true
            }

            fn add(&self, _: &dyn Part) -> Option<Box<dyn Part>> {
                None
            }

            fn take_gradient(&self, _: &mut Gradients) -> Option<Box<dyn Part>> {
                None
            }
        }
    };
}
untracked_part!(Int, ", Int", HostPart::int, |x: Self| x.mul_scalar(1));
untracked_part!(Bool, ", Bool", HostPart::bool, |x: Self| x.bool_not().bool_not());

/// The part in the place of an optional value that isn't there.
#[derive(Clone, Copy)]
pub(crate) struct Absent;

impl Part for Absent {
    fn clone_box(&self) -> Box<dyn Part> {
        Box::new(*self)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn describe(&self) -> String {
        "nothing".to_owned()
    }

    fn shape(&self) -> Vec<usize> {
        Vec::new()
    }

    fn is_on(&self, _: &Device) -> bool {
        true
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn duplicate(&self) -> Box<dyn Part> {
        self.clone_box()
    }

    fn detach_to(self: Box<Self>, _: Option<&Device>) -> Box<dyn Part> {
        self
    }

    fn cast(self: Box<Self>, _: FloatDType) -> Box<dyn Part> {
        self
    }

    fn widen(self: Box<Self>) -> Box<dyn Part> {
        self
    }

    fn track(self: Box<Self>) -> Box<dyn Part> {
        self
    }

    fn leaf(self: Box<Self>) -> Box<dyn Part> {
        self
    }

    fn lift(self: Box<Self>) -> Box<dyn Part> {
        self
    }

    fn contiguous(self: Box<Self>) -> Box<dyn Part> {
        self
    }

    fn is_tracked(&self) -> bool {
        false
    }

    fn seed(&self, _: &dyn Part) -> Option<Tensor<1>> {
        None
    }

    fn is_finite(&self) -> bool {
        true
    }

    fn add(&self, _: &dyn Part) -> Option<Box<dyn Part>> {
        None
    }

    fn take_gradient(&self, _: &mut Gradients) -> Option<Box<dyn Part>> {
        None
    }

    fn slice(&self, _: Range<usize>) -> Box<dyn Part> {
        Box::new(*self)
    }

    fn into_host(self: Box<Self>) -> Option<HostPart> {
        None
    }

    fn concat(&self, others: Vec<Box<dyn Part>>) -> Option<Box<dyn Part>> {
        let all_absent = others.iter().all(|other| other.as_any().is::<Self>());
        all_absent.then(|| self.clone_box())
    }
}

/// The kind of a part's tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum PartKind {
    /// Floats.
    Float,
    /// Whole numbers.
    Int,
    /// Truth values.
    Bool,
}

/// A part's elements on the host.
pub(crate) struct HostPart {
    pub(crate) kind: PartKind,
    pub(crate) data: TensorData,
}

impl HostPart {
    fn float(data: TensorData) -> Self {
        Self { kind: PartKind::Float, data }
    }

    fn int(data: TensorData) -> Self {
        Self { kind: PartKind::Int, data }
    }

    /// Converts truth values to one byte each, because devices store them in different ways.
    fn bool(data: TensorData) -> Self {
        let data = data.convert_dtype(DType::Bool(BoolStore::Native));
        Self { kind: PartKind::Bool, data }
    }
}
