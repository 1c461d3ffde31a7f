package connect

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// fromUntrusted makes settings from a kubeconfig of another party. It copies only the fields listed
// here. So new fields of client-go are refused until they are reviewed.
//
// Errors name fields, never values, because a parser's message may quote a token.
func fromUntrusted(kubeconfig []byte) (*rest.Config, error) {
	raw, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, errors.New("this is not a kubeconfig")
	}
	name := raw.CurrentContext
	if name == "" && len(raw.Contexts) == 1 {
		name = slices.Collect(maps.Keys(raw.Contexts))[0]
	}
	current := raw.Contexts[name]
	if current == nil {
		return nil, errors.New("the kubeconfig has no context with the name in current-context")
	}
	cluster, user := raw.Clusters[current.Cluster], raw.AuthInfos[current.AuthInfo]
	if cluster == nil || user == nil {
		return nil, errors.New("the kubeconfig's current context names a cluster or user that is not in it")
	}
	if err := errors.Join(checkCluster(*cluster), checkUser(*user)); err != nil {
		return nil, err
	}
	clean := clientcmdapi.NewConfig()
	clean.CurrentContext = "cluster"
	clean.Contexts["cluster"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "user"}
	clean.Clusters["cluster"] = &clientcmdapi.Cluster{
		Server: cluster.Server, TLSServerName: cluster.TLSServerName,
		InsecureSkipTLSVerify: cluster.InsecureSkipTLSVerify, CertificateAuthorityData: cluster.CertificateAuthorityData,
		ProxyURL: cluster.ProxyURL, DisableCompression: cluster.DisableCompression,
	}
	clean.AuthInfos["user"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: user.ClientCertificateData, ClientKeyData: user.ClientKeyData, Token: user.Token,
	}
	c, err := clientcmd.NewDefaultClientConfig(*clean, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, errors.New("the kubeconfig's server, certificates or token can't be used")
	}
	return c, nil
}

func checkCluster(c clientcmdapi.Cluster) error {
	switch {
	case c.Server == "":
		return errors.New("the kubeconfig's cluster has no server")
	case c.CertificateAuthority != "":
		return notTaken("certificate-authority", "put the certificate into certificate-authority-data")
	}
	c.LocationOfOrigin, c.Extensions = "", nil
	c.Server, c.TLSServerName, c.ProxyURL = "", "", ""
	c.InsecureSkipTLSVerify, c.DisableCompression, c.CertificateAuthorityData = false, false, nil
	return checkRest(c, "cluster")
}

func checkUser(u clientcmdapi.AuthInfo) error {
	const embed = "put its content into the kubeconfig itself"
	switch {
	case u.Exec != nil:
		return notTaken("exec", "it would run a program on the hub; use a certificate or a token")
	case u.AuthProvider != nil:
		return notTaken("auth-provider", "use a certificate or a token")
	case u.ClientCertificate != "":
		return notTaken("client-certificate", embed)
	case u.ClientKey != "":
		return notTaken("client-key", embed)
	case u.TokenFile != "":
		return notTaken("tokenFile", embed)
	case u.Username != "" || u.Password != "":
		return notTaken("username and password", "API servers no longer know them; use a certificate or a token")
	case u.Impersonate != "" || u.ImpersonateUID != "" || u.ImpersonateGroups != nil || u.ImpersonateUserExtra != nil:
		return notTaken("as", "use the credentials of the user itself")
	case u.Token == "" && len(u.ClientCertificateData) == 0:
		return errors.New("the kubeconfig's user has neither client-certificate-data nor a token")
	}
	u.LocationOfOrigin, u.Extensions = "", nil
	u.ClientCertificateData, u.ClientKeyData, u.Token = nil, nil, ""
	return checkRest(u, "user")
}

// checkRest refuses fields that the checks above have not cleared.
func checkRest(rest any, of string) error {
	if !reflect.ValueOf(rest).IsZero() {
		return fmt.Errorf("the kubeconfig's %s has a field that is not accepted from a Secret", of)
	}
	return nil
}

func notTaken(field, instead string) error {
	return fmt.Errorf("the kubeconfig uses %s, which is not accepted from a Secret: %s", field, instead)
}
