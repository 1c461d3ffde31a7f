package v1beta1

// Hub marks the version from and to which all other versions are converted.
func (*CloneSet) Hub() {}

// Hub marks the version from and to which all other versions are converted.
func (*DaemonSet) Hub() {}

// Hub marks the version from and to which all other versions are converted.
func (*StatefulSet) Hub() {}
