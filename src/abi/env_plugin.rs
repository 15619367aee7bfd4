//! NCCL's environment plugin: from 2.28.9 on, NCCL reads its settings from this library instead of
//! the environment. Ferrite does the same, since NCCL does not pass these settings to network
//! plugins.
//!
//! NCCL puts the contents of its configuration files into the environment. Its function
//! `ncclParamGetParameter` (from 2.30.7 on) is of no use: up to 2.32.3 it only knows settings of
//! the log, and does not distinguish defaults from user settings.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};

/// The used part of the tables of versions 1 and 2.
#[repr(C)]
struct Table {
    name: *const c_char,
    init: *const c_void,
    finalize: *const c_void,
    get_env: Option<unsafe extern "C" fn(*const c_char) -> *const c_char>,
}

const SYMBOLS: [&CStr; 2] = [c"ncclEnvPlugin_v2", c"ncclEnvPlugin_v1"];
/// The default library.
const DEFAULT_LIBRARY: &str = "libnccl-env.so";

/// The plugin, which NCCL has loaded and initialised before it loads Ferrite.
#[derive(Debug)]
struct EnvPlugin {
    name: String,
    get_env: unsafe extern "C" fn(*const c_char) -> *const c_char,
    library: *mut c_void,
}

impl Drop for EnvPlugin {
    fn drop(&mut self) {
        // SAFETY: what `dlopen` has returned. NCCL has it open itself.
        unsafe { libc::dlclose(self.library) };
    }
}

impl EnvPlugin {
    /// The plugin that NCCL has loaded according to `NCCL_ENV_PLUGIN`, whose value is `named`;
    /// `None` if there is none.
    fn loaded(named: Option<&str>) -> Option<Self> {
        libraries(named).into_iter().find_map(|library| Self::of_library(&library))
    }

    fn of_library(file: &str) -> Option<Self> {
        let file = CString::new(file).ok()?;
        // SAFETY: a valid name. This does not load a library that is not loaded yet.
        let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        if library.is_null() {
            return None;
        }
        // SAFETY: an open library and a valid name.
        let address = |symbol: &CStr| unsafe { libc::dlsym(library, symbol.as_ptr()) };
        let table = SYMBOLS.into_iter().map(address).find(|address| !address.is_null());
        // SAFETY: symbols of these names are such tables, by NCCL's interface, which NCCL itself
        // relies on.
        let table = table.map(|address| unsafe { &*address.cast::<Table>() });
        match table.and_then(|table| Some((table.get_env?, table.name))) {
            Some((get_env, name)) => {
                Some(Self { name: text(name).unwrap_or_default(), get_env, library })
            }
            None => {
                // SAFETY: what `dlopen` has returned.
                unsafe { libc::dlclose(library) };
                None
            }
        }
    }

    fn get(&self, name: &str) -> Option<String> {
        let name = CString::new(name).ok()?;
        // SAFETY: the plugin is initialised, as NCCL has used it before loading Ferrite. The answer
        // is copied at once.
        text(unsafe { (self.get_env)(name.as_ptr()) })
    }
}

/// The text at `at`, unless that is null.
fn text(at: *const c_char) -> Option<String> {
    // SAFETY: the plugin's texts end with a zero, by NCCL's interface.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}

/// The libraries that NCCL tries for this value of `NCCL_ENV_PLUGIN`, in order.
fn libraries(named: Option<&str>) -> Vec<Cow<'_, str>> {
    match named {
        None | Some("") => vec![DEFAULT_LIBRARY.into()],
        Some(named) if named.eq_ignore_ascii_case("none") => Vec::new(),
        Some(named)
            if named.contains('/') || named.starts_with("lib") && named.ends_with(".so") =>
        {
            vec![named.into()]
        }
        Some(named) => vec![named.into(), format!("libnccl-env-{named}.so").into()],
    }
}

/// The settings as NCCL sees them.
#[derive(Debug)]
pub(super) struct Settings {
    plugin: Option<EnvPlugin>,
    /// Settings that differ from the environment: name and value.
    told: RefCell<Vec<(String, Option<String>)>>,
}

impl Settings {
    /// The settings of this process.
    pub(super) fn new() -> Self {
        let plugin = EnvPlugin::loaded(in_environment("NCCL_ENV_PLUGIN").as_deref());
        Self { plugin, told: RefCell::default() }
    }

    /// The value of a setting; `None` if unset. As in NCCL, the plugin alone decides on NCCL's
    /// variables. Ferrite's own may be in the environment too.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        let outside = in_environment(name);
        let Some(plugin) = &self.plugin else { return outside };
        let told = plugin.get(name);
        let found = if name.starts_with("NCCL_") { told } else { told.or_else(|| outside.clone()) };
        if found != outside {
            self.told.borrow_mut().push((name.to_owned(), found.clone()));
        }
        found
    }

    /// For the log: the settings that differ from the environment, if any.
    pub(super) fn line(&self) -> Option<String> {
        let plugin = self.plugin.as_ref()?;
        let mut told = self.told.take();
        told.sort();
        told.dedup();
        let each = |(name, value): &(String, Option<String>)| match value {
            Some(value) => format!("{name}={value}"),
            None => format!("{name} not set"),
        };
        let all: Vec<String> = told.iter().map(each).collect();
        (!all.is_empty())
            .then(|| format!("NCCL's environment plugin {} says: {}", plugin.name, all.join(", ")))
    }
}

fn in_environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_looked_for_under_nccls_names() {
        let names = |named| libraries(named).into_iter().map(Cow::into_owned).collect::<Vec<_>>();
        assert_eq!([names(None), names(Some(""))], [["libnccl-env.so"], ["libnccl-env.so"]]);
        assert!(names(Some("None")).is_empty());
        assert_eq!(names(Some("/opt/site.so")), ["/opt/site.so"]);
        assert_eq!(names(Some("libsite.so")), ["libsite.so"]);
        assert_eq!(names(Some("site")), ["site", "libnccl-env-site.so"]);
    }

    extern "C" fn answer(name: *const c_char) -> *const c_char {
        match text(name).as_deref() {
            Some("NCCL_IB_TC" | "FERRITE_SAMPLE") => c"7".as_ptr(),
            _ => std::ptr::null(),
        }
    }

    fn with_plugin() -> Settings {
        // SAFETY: this program itself.
        let library = unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_NOW) };
        Settings {
            plugin: Some(EnvPlugin { name: "site".into(), get_env: answer, library }),
            told: RefCell::default(),
        }
    }

    #[test]
    fn the_plugins_word_counts_and_variables_of_ferrite_may_be_in_the_environment_too() {
        let settings = with_plugin();
        assert_eq!(settings.line(), None);
        assert_eq!(settings.get("NCCL_IB_TC").as_deref(), Some("7"));
        assert_eq!(settings.get("FERRITE_SAMPLE").as_deref(), Some("7"));
        assert_eq!(settings.get("PATH"), in_environment("PATH"), "the plugin does not know it");
        assert_eq!(settings.get("NCCL_IB_SL"), None);
        settings.get("NCCL_IB_TC");
        let line = settings.line().expect("it was told");
        assert_eq!(line, "NCCL's environment plugin site says: FERRITE_SAMPLE=7, NCCL_IB_TC=7");
    }

    #[test]
    fn without_a_plugin_it_is_the_environment() {
        let settings = Settings {
            plugin: EnvPlugin::loaded(Some("no_such_plugin")),
            told: RefCell::default(),
        };
        assert!(settings.plugin.is_none());
        assert_eq!(settings.get("PATH"), in_environment("PATH"));
        assert_eq!((settings.get("NCCL_NO_SUCH"), settings.line()), (None, None));
    }

    #[test]
    fn a_library_without_the_symbol_is_no_plugin() {
        assert!(EnvPlugin::loaded(Some("libc.so.6")).is_none());
    }
}
