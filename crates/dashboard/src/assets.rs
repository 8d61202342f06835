//! The pages, as `web/check --fix` built them.

/// A file of the dashboard.
pub struct Asset {
    path: &'static str,
    /// Its media type.
    pub kind: &'static str,
    /// Its content.
    pub bytes: &'static [u8],
}

const ASSETS: [Asset; 3] = [
    Asset {
        path: "/",
        kind: "text/html; charset=utf-8",
        bytes: include_bytes!("../../../web/dist/dashboard.html"),
    },
    Asset {
        path: "/dashboard.js",
        kind: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../../../web/dist/dashboard.js"),
    },
    Asset {
        path: "/dashboard.css",
        kind: "text/css; charset=utf-8",
        bytes: include_bytes!("../../../web/dist/dashboard.css"),
    },
];

/// The file at a path.
pub fn asset(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_only_files_that_are_served_and_holds_no_inline_code() {
        let page = String::from_utf8_lossy(asset("/").expect("the page").bytes);
        let named = page.split(['"']).filter(|text| text.starts_with('/'));
        let named: Vec<&str> = named.collect();
        assert_eq!(named, ["/dashboard.css", "/dashboard.js"]);
        assert!(named.iter().all(|path| asset(path).is_some()));
        assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains(" on"));
        assert_eq!(page.matches("<script").count(), page.matches("<script src=").count());
    }

    #[test]
    fn the_script_loads_nothing_from_elsewhere() {
        let script = String::from_utf8_lossy(asset("/dashboard.js").expect("the script").bytes);
        // The name space of SVG is a name, not an address.
        let rest = script.replace("http://www.w3.org/", "");
        assert!(!rest.contains("http://") && !rest.contains("https://"));
        assert!(!rest.contains("eval(") && !rest.contains("new Function"));
    }
}
