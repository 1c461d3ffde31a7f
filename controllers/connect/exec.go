package connect

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// checkPrograms refuses a context whose user would run a program that was not
// allowed. client-go holds to the same list when it runs one (see policy), and
// tells it in the middle of a request, without the context and what to do.
func (s Source) checkPrograms(raw *clientcmdapi.Config, context string) error {
	c := raw.Contexts[context]
	if c == nil {
		return nil // said elsewhere
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

// allows says whether a program is one of those that were named: by the same
// words, or found at the same place.
func (s Source) allows(command string) bool {
	path := lookPath(command)
	return slices.ContainsFunc(s.AllowExec, func(allowed string) bool {
		return filepath.Clean(allowed) == filepath.Clean(command) || path != "" && lookPath(allowed) == path
	})
}

// lookPath is where a program is; "" when it is nowhere.
func lookPath(command string) string {
	path, err := exec.LookPath(command)
	if err != nil {
		return "" // in the current folder alone, for example: not to be run by its name
	}
	return path
}

// policy is what client-go is to hold to.
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
