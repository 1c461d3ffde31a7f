package v1beta1

// Hub marks the version that the others are converted from and to.
func (*CloneSet) Hub() {}

// Hub marks the version that the others are converted from and to.
func (*DaemonSet) Hub() {}
