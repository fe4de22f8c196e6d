//! Steps of toy stages on plain numbers, whatever the plan, the transport and the failure.

mod arrivals;
mod exactness;
mod failures;
mod threads;
mod toy;
