// Package chartsource copies third-party charts into a fleet repository: from an OCI registry, a
// chart repository or disk, pinned by digest, with their dependencies. Keelson then delivers files
// in git.
//
// Guarantee: a returned chart has the requested digest, the name and version that its source names,
// and all its dependencies. Anything else is an error. [Tree.Write] writes the new files beside the
// old ones, replaces them by renames, and undoes the renames after an error. The caller checks
// [Component.Touched] before it overwrites local changes.
//
// Credentials go only to the host that they are stored for. They are never sent along a redirect to
// another origin, and never without TLS unless the options allow it. They come from helm's files,
// and appear in no error.
//
// Limits: the index of a chart repository has at most 32 MiB, a packed chart at most 50 MiB. A
// packed chart must unpack within the limits of a component ([registry.ChartLimits]).
package chartsource
