/// Tests that are a line each, after the type that they return: `cases! { (); name => expression; }`.
#[macro_export]
macro_rules! cases {
    ($type:ty; $($(#[$about:meta])* $name:ident => $body:expr;)*) => {$(
        $(#[$about])*
        #[test]
        fn $name() -> $type {
            $body
        }
    )*};
}
