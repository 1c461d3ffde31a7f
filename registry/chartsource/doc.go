// Package chartsource brings charts of other people into a fleet repository: out
// of an OCI registry, a chart repository, or from a disk, pinned by digest, and
// with what they depend on. What is delivered are then files in git.
//
// Guarantee: what comes back has the digest that was asked for, the name and the
// version that its source promised, and every dependency that it names. Anything
// else is an error, and with an error nothing in a work tree has changed. A
// [Tree] is changed by renames of what was written whole beside it, and local
// changes are not overwritten without a word.
//
// Credentials go to the very host that they are kept for, never along a
// redirect, and never without TLS unless that was asked for. They come from
// where helm keeps them, and show in no error.
//
// Limits: an index of a chart repository is at most 32 MiB, a packed chart 50
// MiB, and it unpacks within the limits of a component ([registry.ChartLimits]).
package chartsource
