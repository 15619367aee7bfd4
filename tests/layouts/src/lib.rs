//! Tests of the declarations of C's types in Rust against the headers that they are written from:
//! where members lie, how long and how aligned structs are, and numbers. Types of members and of
//! functions are not compared, but for those that bindgen makes.

#![cfg(test)]

mod c;
mod nccl;
mod verbs;

/// Adds to `Expressions`: where members lie in a struct, and with `whole` its size and alignment as
/// well. A member that has another name in C is followed by that name.
macro_rules! layout {
    ($to:ident, whole $c:literal, $rust:ty { $($members:tt)* }) => {
        $to.size($c, size_of::<$rust>(), align_of::<$rust>());
        layout!($to, $c, $rust { $($members)* });
    };
    ($to:ident, $c:literal, $rust:ty { $($member:ident $(= $name:literal)?),* $(,)? }) => {
        $($to.offset($c, [$($name,)? stringify!($member)][0], std::mem::offset_of!($rust, $member));)*
    };
}
use layout;
