package connect

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// checkPrograms refuses a context whose user has an auth-provider, or a program that is not
// allowed. client-go enforces the same list (see policy). But its error comes in the middle of a
// request, without the context and without a remedy.
func (s Source) checkPrograms(raw *clientcmdapi.Config, context string) error {
	c := raw.Contexts[context]
	if c == nil {
		return nil // the caller reports a missing context
	}
	user := raw.AuthInfos[c.AuthInfo]
	switch {
	case user == nil:
		return nil
	case user.AuthProvider != nil:
		return fmt.Errorf("context %s of the kubeconfig: user %s uses the auth-provider %q, and Keelson has none: use a token, a certificate, or exec with --allow-exec",
			context, c.AuthInfo, user.AuthProvider.Name)
	case user.Exec == nil || s.allows(user.Exec.Command):
		return nil
	default:
		return fmt.Errorf("context %s of the kubeconfig: user %s would run the program %q, which was not allowed: if you trust it, give --allow-exec %s",
			context, c.AuthInfo, user.Exec.Command, user.Exec.Command)
	}
}

// allows reports whether a program was allowed: under the same name, or at the same path.
func (s Source) allows(command string) bool {
	path := lookPath(command)
	return slices.ContainsFunc(s.AllowExec, func(allowed string) bool {
		return filepath.Clean(allowed) == filepath.Clean(command) || path != "" && lookPath(allowed) == path
	})
}

// lookPath returns the path of a program; "" if it is not found.
func lookPath(command string) string {
	path, err := exec.LookPath(command)
	if err != nil {
		return "" // for example only in the current folder, and not to be run by its name
	}
	return path
}

// policy returns the list of programs for client-go.
func (s Source) policy() clientcmdapi.PluginPolicy {
	if len(s.AllowExec) == 0 {
		return clientcmdapi.PluginPolicy{PolicyType: clientcmdapi.PluginPolicyDenyAll}
	}
	p := clientcmdapi.PluginPolicy{PolicyType: clientcmdapi.PluginPolicyAllowlist}
	for _, allowed := range s.AllowExec {
		p.Allowlist = append(p.Allowlist, clientcmdapi.AllowlistEntry{Command: filepath.Clean(allowed)})
	}
	return p
}
