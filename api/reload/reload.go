// Package reload has the names by which a workload controller and a container agree on a reload. It
// imports nothing, so that programs in containers stay small.
//
// The controller sends a POST request with [HeaderVersion]. The container reads its configuration again,
// and answers with the version of the files that it has read, which [VersionFile] names. A status of 2xx
// says that it runs them, and any other status that it can't. An answer with another version says that
// the files are not there yet: the controller asks again.
package reload

const (
	// HeaderVersion is a header of the request: the version that the container should run. In the answer it
	// is the version of the files that the container has read.
	HeaderVersion = "Keelson-Configuration-Version"
	// VersionFile is the name of a file with the version, in each volume of configuration that can change.
	VersionFile = ".keelson-version"
)
