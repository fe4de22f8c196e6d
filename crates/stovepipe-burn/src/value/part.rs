//! One tensor of any rank and kind behind an object-safe trait. Packets of them are the business of
//! `packet`, the types that a layer sees that of `boundary`.

use std::any::Any;
use std::ops::Range;

use burn::tensor::kind::Basic;
use burn::tensor::{
    Bool, BoolStore, DType, Device, FloatDType, Gradients, Int, Tensor, TensorCreationOptions,
    TensorData,
};

use crate::value::dtype;

/// One tensor of a boundary value, its rank and kind erased.
pub(crate) trait Part: Any + Send + Sync {
    fn clone_box(&self) -> Box<dyn Part>;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
    fn as_any(&self) -> &dyn Any;
    /// Kind, rank and shape for messages, like `Tensor<3> [8, 64, 256]`.
    fn describe(&self) -> String;
    fn shape(&self) -> Vec<usize>;
    /// Whether it is on this device; what isn't there is everywhere.
    fn is_on(&self, device: &Device) -> bool;
    /// What its elements take on the device.
    fn bytes(&self) -> u64;
    /// The same values in memory of their own.
    fn duplicate(&self) -> Box<dyn Part>;
    /// Off the tape and contiguous, on `device` or where it is: how every value crosses a layer
    /// boundary.
    fn detach_to(self: Box<Self>, device: Option<&Device>) -> Box<dyn Part>;
    /// In another type if it is a float tensor.
    fn cast(self: Box<Self>, dtype: FloatDType) -> Box<dyn Part>;
    /// In at least 32 bits if it is a float tensor.
    fn widen(self: Box<Self>) -> Box<dyn Part>;
    /// With autodiff on, without a gradient of its own.
    fn track(self: Box<Self>) -> Box<dyn Part>;
    /// With autodiff on, as a leaf whose gradient is kept if it is a float tensor.
    fn leaf(self: Box<Self>) -> Box<dyn Part>;
    /// Whether a gradient can flow into it.
    fn is_tracked(&self) -> bool;
    /// `sum(self * gradient)`, whose backward continues from `gradient`.
    fn seed(&self, gradient: &dyn Part) -> Option<Tensor<1>>;
    /// The leaf's gradient, if the backward reached it.
    fn take_gradient(&self, gradients: &mut Gradients) -> Option<Box<dyn Part>>;
    /// A contiguous piece along the first axis.
    fn slice(&self, range: Range<usize>) -> Box<dyn Part>;
    /// Copied to the host, if there is anything.
    fn into_host(self: Box<Self>) -> Option<HostPart>;
    /// Joins pieces of the same kind and rank along the first axis; `None` if one differs.
    fn concat(&self, others: Vec<Box<dyn Part>>) -> Option<Box<dyn Part>>;
}

/// The same tensors once more; nothing is moved.
pub(crate) fn copied(parts: &[Box<dyn Part>]) -> Vec<Box<dyn Part>> {
    parts.iter().map(|part| part.clone_box()).collect()
}

/// A fresh copy in the tensor's own order of elements where it was a view. Sums over a view and over
/// its copy differ in the last bits, so values must not depend on where a boundary happens to be.
macro_rules! contiguous {
    ($tensor:expr) => {{
        let tensor = $tensor;
        let shape = tensor.shape();
        let whole: Self = tensor.reshape([-1]).reshape(shape);
        whole
    }};
}

/// A tensor's values, copied to the host now. On CubeCL's devices `into_data` copies when the values are first
/// looked at, and would show what has become of the memory until then.
pub(crate) fn read<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> TensorData {
    let data = tensor.into_data();
    std::hint::black_box(data.as_bytes());
    data
}

/// Whether two devices belong to one of Burn's backends and compute with the same types.
fn speak_alike(one: &Device, other: &Device) -> bool {
    let kind = |device: &Device| std::mem::discriminant(device.as_dispatch());
    let (one, other) = (one.clone().inner(), other.clone().inner());
    kind(&one) == kind(&other) && one.settings() == other.settings()
}

/// Floats keep their type wherever they go.
fn same_type(device: &Device, dtype: DType) -> TensorCreationOptions {
    (device, dtype).into()
}

/// Whole numbers and truth values take the type that the device computes with.
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
            // Devices are the same with autodiff and without.
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
                Some(device) if speak_alike(&tensor.device(), device) => {
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
        // The other one keeps it from happening in place.
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

    fn is_tracked(&self) -> bool {
        Tensor::is_tracked(self)
    }

    fn seed(&self, gradient: &dyn Part) -> Option<Tensor<1>> {
        let gradient = gradient.as_any().downcast_ref::<Self>()?;
        // Seeds of several types are added to each other, and to what layers add to the loss.
        Some(dtype::widen((self.clone() * Tensor::from_inner(gradient.clone())).sum()))
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

            fn is_tracked(&self) -> bool {
                false
            }

            fn seed(&self, _: &dyn Part) -> Option<Tensor<1>> {
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

/// Stands for an optional value that isn't there.
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

    fn is_tracked(&self) -> bool {
        false
    }

    fn seed(&self, _: &dyn Part) -> Option<Tensor<1>> {
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

/// Which kind of tensor a part is.
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

    /// Devices store truth in different ways.
    fn bool(data: TensorData) -> Self {
        let data = data.convert_dtype(DType::Bool(BoolStore::Native));
        Self { kind: PartKind::Bool, data }
    }
}
