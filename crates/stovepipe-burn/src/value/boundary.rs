//! Types that may stand at the boundary of a layer: tensors of any rank and kind, and tuples
//! of such types.

use burn::tensor::{Bool, Int, Tensor};

use crate::value::packet::Packet;
use crate::value::part::{Absent, Part};

/// A type that layers take and return, and that therefore can travel between stages.
///
/// It is implemented for:
///
/// - `Tensor<D>`, `Tensor<D, Int>` and `Tensor<D, Bool>` of any rank
/// - tuples of two to six boundary types, nested ones included
/// - `Option` of a boundary type
///
/// The first axis of every tensor that enters or leaves the model is the batch axis.
///
/// The trait is sealed, because values are taken apart into tensors on the way.
pub trait Boundary: sealed::Boundary + Send + 'static {}

impl<T: sealed::Boundary + Send + 'static> Boundary for T {}

/// The error for a value of another type than a layer or a loss takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("takes {expected}, but was given {found}")]
pub struct BoundaryError {
    expected: String,
    found: String,
}

pub(crate) fn into_packet<T: Boundary>(value: T) -> Packet {
    Packet::of(into_parts(value))
}

pub(crate) fn into_parts<T: Boundary>(value: T) -> Vec<Box<dyn Part>> {
    let mut parts = Vec::new();
    value.push(&mut parts);
    parts
}

pub(crate) fn from_parts<T: Boundary>(parts: Vec<Box<dyn Part>>) -> Result<T, BoundaryError> {
    let found = parts.iter().map(|p| p.describe()).collect::<Vec<_>>().join(", ");
    let mut parts = parts.into_iter().peekable();
    let value = T::pull(&mut parts).filter(|_| parts.next().is_none());
    value.ok_or_else(|| BoundaryError { expected: T::describe(), found })
}

impl Packet {
    /// Makes a packet of a value.
    pub fn new(value: impl Boundary) -> Self {
        into_packet(value)
    }

    /// Returns the packet's value.
    ///
    /// # Errors
    ///
    /// [`BoundaryError`] if it has another type than `T`.
    pub fn into_value<T: Boundary>(self) -> Result<T, BoundaryError> {
        from_parts(self.into_values())
    }
}

/// The parts of a value that haven't been pulled yet.
pub(crate) type Parts = std::iter::Peekable<std::vec::IntoIter<Box<dyn Part>>>;

pub(crate) mod sealed {
    use crate::value::boundary::Parts;
    use crate::value::part::Part;

    /// Takes values apart and puts them together.
    #[allow(private_interfaces, reason = "sealed: no other crate sees or implements this")]
    pub trait Boundary: Sized {
        /// Appends the value's parts.
        fn push(self, parts: &mut Vec<Box<dyn Part>>);
        /// Takes the next value of this type, or returns `None` if the next parts have another
        /// one.
        fn pull(parts: &mut Parts) -> Option<Self>;
        /// Returns the type for messages, like `(Tensor<2>, Tensor<1, Int>)`.
        fn describe() -> String;
    }
}

macro_rules! tensor {
    ($kind:ty, $name:literal) => {
        #[allow(private_interfaces, reason = "sealed: no other crate sees or implements this")]
        impl<const D: usize> sealed::Boundary for Tensor<D, $kind> {
            fn push(self, parts: &mut Vec<Box<dyn Part>>) {
                parts.push(Box::new(self));
            }

            fn pull(parts: &mut Parts) -> Option<Self> {
                parts.next()?.into_any().downcast().ok().map(|tensor| *tensor)
            }

            fn describe() -> String {
                format!(concat!("Tensor<{}", $name, ">"), D)
            }
        }
    };
}
tensor!(burn::tensor::Float, "");
tensor!(Int, ", Int");
tensor!(Bool, ", Bool");

#[allow(private_interfaces, reason = "sealed: no other crate sees or implements this")]
impl<T: sealed::Boundary> sealed::Boundary for Option<T> {
    fn push(self, parts: &mut Vec<Box<dyn Part>>) {
        match self {
            Some(value) => value.push(parts),
            None => parts.push(Box::new(Absent)),
        }
    }

    fn pull(parts: &mut Parts) -> Option<Self> {
        if parts.next_if(|part| part.as_any().is::<Absent>()).is_some() {
            return Some(None);
        }
        T::pull(parts).map(Some)
    }

    fn describe() -> String {
        format!("Option<{}>", T::describe())
    }
}

macro_rules! tuple {
    ($($name:ident)+) => {
        #[allow(private_interfaces, reason = "sealed: no other crate sees or implements this")]
        impl<$($name: sealed::Boundary),+> sealed::Boundary for ($($name,)+) {
            #[expect(non_snake_case, reason = "the types' names serve as the fields'")]
            fn push(self, parts: &mut Vec<Box<dyn Part>>) {
                let ($($name,)+) = self;
                $($name.push(parts);)+
            }

            fn pull(parts: &mut Parts) -> Option<Self> {
                Some(($($name::pull(parts)?,)+))
            }

            fn describe() -> String {
                format!("({})", [$($name::describe()),+].join(", "))
            }
        }
    };
}
tuple!(A B);
tuple!(A B C);
tuple!(A B C D);
tuple!(A B C D E);
tuple!(A B C D E F);

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn nested_tuples_round_trip_and_wrong_types_are_named() {
        let device = Device::flex();
        let value = (
            Tensor::<2>::zeros([2, 3], &device),
            (Tensor::<1, Int>::zeros([2], &device), Tensor::<3>::ones([2, 1, 1], &device)),
        );
        let parts = into_parts(value);
        assert_eq!(parts.len(), 3);
        let back = from_parts::<(Tensor<2>, (Tensor<1, Int>, Tensor<3>))>(parts).expect("fits");
        assert_eq!(back.1.1.dims(), [2, 1, 1]);

        let parts = into_parts(Tensor::<2>::zeros([2, 3], &device));
        let error = from_parts::<Tensor<3>>(parts).expect_err("another rank").to_string();
        assert_eq!(error, "takes Tensor<3>, but was given Tensor<2> [2, 3]");
        let parts =
            into_parts((Tensor::<1>::zeros([2], &device), Tensor::<1>::zeros([2], &device)));
        assert!(from_parts::<Tensor<1>>(parts).is_err());
    }

    #[test]
    fn optional_values_stay_present_or_absent() {
        type Value = (Option<Tensor<1>>, (Tensor<2>, Option<Tensor<1, Int>>));
        let device = Device::flex();
        let x = || Tensor::<2>::zeros([2, 3], &device);
        for there in [false, true] {
            let value: Value = (
                there.then(|| Tensor::ones([2], &device)),
                (x(), (!there).then(|| Tensor::zeros([2], &device))),
            );
            let packet = into_packet(value);
            assert_eq!(packet.samples(), Ok(2));
            let pieces = vec![packet.slice(&(0..1)), packet.slice(&(1..2))];
            let joined = Packet::concat(pieces).expect("same types").into_values();
            let (first, (_, last)) = from_parts::<Value>(joined).expect("fits");
            assert_eq!((first.is_some(), last.is_some()), (there, !there));
        }
        let error = from_parts::<Tensor<2>>(into_parts(None::<Tensor<2>>)).expect_err("nothing");
        assert_eq!(error.to_string(), "takes Tensor<2>, but was given nothing");
    }

    #[test]
    fn packets_split_and_join_along_the_first_axis() {
        let device = Device::flex();
        let ids = Tensor::<2, Int>::from_data([[1, 2], [3, 4], [5, 6]], &device);
        let packet = into_packet((ids, Tensor::<1>::from_data([1.0, 2.0, 3.0], &device)));
        assert_eq!(packet.samples(), Ok(3));
        let pieces = vec![packet.slice(&(0..1)), packet.slice(&(1..3))];
        let joined = Packet::concat(pieces).expect("same types").into_values();
        let (ids, x) = from_parts::<(Tensor<2, Int>, Tensor<1>)>(joined).expect("fits");
        assert_eq!(ids.to_data().iter::<i64>().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(x.to_data().iter::<f32>().collect::<Vec<_>>(), [1.0, 2.0, 3.0]);

        let ragged =
            into_packet((Tensor::<1>::zeros([2], &device), Tensor::<1>::zeros([3], &device)));
        assert!(ragged.samples().expect_err("ragged").contains("disagree"));
    }
}
