//! What every engine can take now, from the shared page: no call.
//!
//! `cargo run -p gpuadmit-client --example headroom_page -- /run/gpuadmit/gpuadmit.page`

use std::{env, error::Error, path::PathBuf};

use gpuadmit_client::{
    DEFAULT_SOCKET,
    page::{Class, Reader, path},
};

fn main() -> Result<(), Box<dyn Error>> {
    let file = env::args_os().nth(1).map_or_else(|| path(DEFAULT_SOCKET), PathBuf::from);
    for engine in Reader::open(&file)?.engines()? {
        print!("{} {}", engine.id(), engine.state().as_str_name());
        match engine.headroom(Class::Standard) {
            Some(headroom) => println!(" {} tokens, at least {}", headroom.tokens, headroom.tokens_lower),
            None => println!(" headroom unknown"),
        }
    }
    Ok(())
}
