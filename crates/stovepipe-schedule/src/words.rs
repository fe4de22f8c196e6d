//! The words that everything else is said in: ids, actions and messages, edges, shapes, errors.

pub(crate) mod action;
pub(crate) mod compute;
pub(crate) mod edges;
pub(crate) mod error;
pub(crate) mod ids;
mod limits;
pub(crate) mod message;
pub(crate) mod mode;
pub(crate) mod shape;
pub(crate) mod text;
