package gitrepo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// sshServer runs git-upload-pack, or git-receive-pack, on a server. It does not use go-git's SSH
// transport. go-git reads ~/.ssh/config, which may redirect a session to another host. It also
// bounds neither the data from the server nor the time without data.
type sshServer struct {
	client  *ssh.Client
	session *ssh.Session
	agent   io.Closer // nil: no agent is used
	in      io.WriteCloser
	out     io.Reader
	stop    func() bool
}

func dialSSH(ctx context.Context, at address, service string, w *watchdog) (_ *sshServer, err error) {
	endpoint, login := at.endpoint, at.login
	port := endpoint.Port
	if port == 0 {
		port = 22
	}
	address := net.JoinHostPort(strings.Trim(endpoint.Host, "[]"), strconv.Itoa(port))
	config := &ssh.ClientConfig{User: endpoint.User, Timeout: connectTimeout}
	if config.User == "" {
		return nil, errors.New("the URL names no user: ssh://git@HOST/PATH, say")
	}
	if err := knowHosts(config, address, login.KnownHostsFile); err != nil {
		return nil, err
	}
	s := &sshServer{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if config.Auth, s.agent, err = sshAuth(ctx, login); err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the address
	}
	// The handshake and sessions do not use contexts.
	s.stop = context.AfterFunc(ctx, func() { _ = conn.Close() })
	c, channels, requests, err := ssh.NewClientConn(conn, address, config)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller says of what
	}
	s.client = ssh.NewClient(c, channels, requests)
	if err := s.start(service, endpoint.Path, w); err != nil {
		return nil, fmt.Errorf("start %s: %w", service, err)
	}
	return s, nil
}

// start starts a git service.
func (s *sshServer) start(service, path string, w *watchdog) (err error) {
	if s.session, err = s.client.NewSession(); err != nil {
		return err //nolint:wrapcheck // the caller wraps it
	}
	if s.in, err = s.session.StdinPipe(); err != nil {
		return err //nolint:wrapcheck // as above
	}
	out, err := s.session.StdoutPipe()
	if err != nil {
		return err //nolint:wrapcheck // as above
	}
	// go-git reads four bytes at a time, and each read of the channel sends a packet.
	s.out = bufio.NewReaderSize(w.reader(out), 32<<10)
	// The server runs a shell. Within single quotes, a shell interprets only these characters.
	quoted := "'" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(path) + "'"
	return s.session.Start(service + " " + quoted) //nolint:wrapcheck // as above
}

// knowHosts makes config refuse hosts with an unknown key.
func knowHosts(config *ssh.ClientConfig, address, file string) error {
	files := userKnownHosts()
	if file != "" {
		files = []string{file}
	}
	add := "~/.ssh/known_hosts"
	if len(files) > 0 {
		add = files[0]
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("the host can't be read: %w", err)
	}
	db, err := knownhosts.NewDB(files...)
	if err != nil {
		return fmt.Errorf("read known hosts: %w", err)
	}
	known := db.HostKeyCallback()
	config.HostKeyAlgorithms = db.HostKeyAlgorithms(address)
	config.HostKeyCallback = func(name string, remote net.Addr, key ssh.PublicKey) error {
		err := known(name, remote, key)
		switch {
		case err == nil:
			return nil
		case knownhosts.IsHostUnknown(err):
			return fmt.Errorf("the host key of %s is not known; it shows %s: compare that with what its administrators publish, "+
				"then add it with: ssh-keyscan -t %s -p %s %s >> %s",
				name, ssh.FingerprintSHA256(key), strings.TrimPrefix(key.Type(), "ssh-"), port, host, add)
		case knownhosts.IsHostKeyChanged(err):
			return fmt.Errorf("the host key of %s is another than the one in %s: it shows %s; another server may answer in its place, "+
				"so ask its administrators before you replace the line", name, add, ssh.FingerprintSHA256(key))
		default:
			return fmt.Errorf("the host key of %s is refused: %w", name, err)
		}
	}
	return nil
}

// sshAuth returns the login with a key file, or with the SSH agent.
func sshAuth(ctx context.Context, login login) ([]ssh.AuthMethod, io.Closer, error) {
	if login.KeyFile == "" {
		socket := os.Getenv("SSH_AUTH_SOCK")
		if socket == "" {
			return nil, nil, errors.New("there is no key to log in with: name a keyFile for this host in the credentials file, or start an SSH agent")
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, nil, fmt.Errorf("ask the SSH agent: %w", err)
		}
		return []ssh.AuthMethod{ssh.PublicKeysCallback(agent.NewClient(conn).Signers)}, conn, nil
	}
	pem, err := readSmall(login.KeyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("read the SSH key: %w", err)
	}
	var signer ssh.Signer
	if login.PassphraseFile != "" {
		phrase, err := secret("", login.PassphraseFile)
		if err != nil {
			return nil, nil, err
		}
		signer, err = ssh.ParsePrivateKeyWithPassphrase(pem, []byte(phrase))
		if err != nil {
			return nil, nil, fmt.Errorf("open the SSH key %s: %w", login.KeyFile, err)
		}
	} else if signer, err = ssh.ParsePrivateKey(pem); err != nil {
		return nil, nil, fmt.Errorf("read the SSH key %s: %w", login.KeyFile, err)
	}
	return []ssh.AuthMethod{ssh.PublicKeys(signer)}, nil, nil
}

func (s *sshServer) refs(context.Context) (*packp.AdvRefs, error) {
	refs := packp.NewAdvRefs()
	err := refs.Decode(s.out)
	switch {
	case errors.Is(err, packp.ErrEmptyAdvRefs):
		return nil, transport.ErrEmptyRemoteRepository
	case errors.Is(err, packp.ErrEmptyInput):
		return nil, errors.New("the server answered nothing: there may be no such repository, or no right to read it")
	case err != nil:
		return nil, err //nolint:wrapcheck // the caller says of what
	case refs.IsEmpty():
		return nil, transport.ErrEmptyRemoteRepository
	}
	transport.FilterUnsupportedCapabilities(refs.Capabilities)
	return refs, nil
}

func (s *sshServer) pack(_ context.Context, req *packp.UploadPackRequest) (io.ReadCloser, error) {
	if err := req.Validate(); err != nil {
		return nil, err //nolint:wrapcheck // the caller says of what
	}
	if err := req.UploadRequest.Encode(s.in); err != nil {
		return nil, err //nolint:wrapcheck // as above
	}
	if err := req.UploadHaves.Encode(s.in, false); err != nil {
		return nil, err //nolint:wrapcheck // as above
	}
	if err := pktline.NewEncoder(s.in).EncodeString("done\n"); err != nil {
		return nil, err //nolint:wrapcheck // as above
	}
	res := packp.NewUploadPackResponse(req)
	if err := res.Decode(io.NopCloser(s.out)); err != nil {
		return nil, err //nolint:wrapcheck // as above
	}
	return res, nil
}

// close ends the connection without waiting for the server.
func (s *sshServer) close() error {
	if s.stop != nil {
		s.stop()
	}
	var err error
	if s.client != nil {
		err = s.client.Close()
	}
	if s.agent != nil {
		err = errors.Join(err, s.agent.Close())
	}
	if errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
		return nil // the connection had ended before
	}
	return err
}
